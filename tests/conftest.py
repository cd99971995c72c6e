"""What holds for every test."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# How long an example takes, or is looked for, says more of what else this machine does. The same examples each time:
# others are for who looks for mistakes, by `pytest --hypothesis-profile=others`, and not for who has changed nothing.
settings.register_profile("anywhere", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("others", settings.get_profile("anywhere"), derandomize=False, print_blob=True)
settings.load_profile("anywhere")


def pytest_configure() -> None:
    """Programs that tests interrupt must be able to be: a shell that runs us in the background has us ignore Ctrl-C,
    and whatever we start would inherit that. And what other users are to see is not hidden by whoever runs us."""
    os.umask(0o022)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
