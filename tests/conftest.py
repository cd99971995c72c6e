"""Settings for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

# There is no deadline, as the duration of an example depends on the load of the machine. The examples are the same in
# every run, so that a test fails only after a change; `pytest --hypothesis-profile=others` draws new ones.
settings.register_profile("anywhere", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("others", settings.get_profile("anywhere"), derandomize=False, print_blob=True)
settings.load_profile("anywhere")


def pytest_configure() -> None:
    """Reset the umask and the Ctrl-C handler that pytest inherited.

    A shell that starts pytest in the background makes it ignore SIGINT, and the programs that tests interrupt would
    inherit this. A strict umask would hide files from the other users of the tests.
    """
    os.umask(0o022)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
