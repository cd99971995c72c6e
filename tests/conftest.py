"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("anywhere", deadline=None)
settings.load_profile("anywhere")  # how long an example takes says more of what else this machine does


def pytest_configure() -> None:
    """Programs that tests interrupt must be able to be: a shell that runs us in the background has us ignore Ctrl-C,
    and whatever we start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
