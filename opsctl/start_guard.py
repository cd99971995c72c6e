"""Start the guard inside a batch job: `python -P -m opsctl.start_guard RUN_DIR`, called by the wrapper.

The nodes of the job wait until the body runs. So the guard imports first what decides whether the body may run, and the
rest beside the body.
"""

from __future__ import annotations

from opsctl.search_path import put_user_directories_last

put_user_directories_last()  # before anything else is imported

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

IMPORT_LIMIT_S = 60
"""A file system that hangs for longer fails the start of the guard."""


def main(argv: list[str]) -> NoReturn:
    """Run the guard of the train in the run directory, and exit as its body does."""
    [run_dir] = argv
    try:
        with time_limit(IMPORT_LIMIT_S):
            start = import_guard()
    except Exception as error:  # noqa: BLE001 (whatever it is: a failing guard never stops a healthy train)
        go_on_without_guard(f"{run_dir}/wrapper.slurm", error)
    leave(start(run_dir))


def import_guard() -> Callable[[str], int]:
    """Import what runs before the body, and read the settings of the site; return the guard."""
    from pathlib import Path  # noqa: PLC0415 (below, errors of the imports are caught)

    from opsctl.actions.guard_actions import run_guard  # noqa: PLC0415 (as above)
    from opsctl.app import build, open_debug_log  # noqa: PLC0415 (as above)
    from opsctl.host import log_config  # noqa: PLC0415 (as above)

    log_config.configure(None)
    log_config.show_progress()
    app = build()
    open_debug_log(app, f"guard run {' '.join(sys.argv[1:])}")
    return lambda run_dir: run_guard(app, Path(run_dir))


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError inside the block after `seconds`."""

    def give_up(*_: object) -> NoReturn:
        raise TimeoutError(f"the guard was still starting after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def go_on_without_guard(wrapper: str, error: Exception) -> NoReturn:
    """Replace this process by the wrapper, which then runs the body without a guard."""
    sys.stderr.write(f"opsctl: the guard cannot start: {type(error).__name__}: {error}\n")
    sys.stderr.flush()
    os.execvpe("bash", ["bash", wrapper], {**os.environ, "OPSCTL_GUARD_FAILED": "yes"})


def leave(code: int) -> NoReturn:
    """Exit without Python's own end: the next task waits for this one."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
