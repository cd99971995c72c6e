"""Start the guard inside a batch job: `python -P -m opsctl.start_guard RUN_DIR`, called by the wrapper.

The nodes of the job wait until the body runs. So the guard imports first what decides whether the body may run, and the
rest beside the body.
"""

from __future__ import annotations

from opsctl.search_path import put_user_directories_last

put_user_directories_last()  # before anything else is imported

import gc
import os
import signal
import sys

TYPE_CHECKING = False  # type checkers know the name; the wrapper imports this module to try Python and opsctl
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

IMPORT_LIMIT_S = 60
"""A file system that hangs for longer fails the start of the guard."""

PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""To find plugins, pydantic reads files of every installed package. The trainer keeps what the user has set."""


def main(argv: list[str]) -> NoReturn:
    """Run the guard of the train in the run directory, and exit as its body does."""
    [run_dir] = argv
    try:
        signal.signal(signal.SIGALRM, give_up)
        signal.alarm(IMPORT_LIMIT_S)
        start = import_guard()
        signal.alarm(0)
    except Exception as error:  # noqa: BLE001 (whatever it is: a failing guard never stops a healthy train)
        go_on_without_guard(f"{run_dir}/wrapper.slurm", error)
    leave(start(run_dir))


def give_up(*_: object) -> NoReturn:
    raise TimeoutError(f"the guard was still starting after {IMPORT_LIMIT_S} s")


def import_guard() -> Callable[[str], int]:
    """Import what runs before the body, and read the settings of the site; return the guard."""
    gc.disable()  # imports leave next to no garbage; the search for it takes 7 % of their time
    chosen = os.environ.get(PLUGINS)
    os.environ[PLUGINS] = "__all__"
    try:
        from pathlib import Path  # noqa: PLC0415 (here, errors of the imports are caught)

        from opsctl.actions.guard_actions import run_guard  # noqa: PLC0415 (as above)
        from opsctl.app import build, open_debug_log  # noqa: PLC0415 (as above)
        from opsctl.host import log_config  # noqa: PLC0415 (as above)
    finally:
        del os.environ[PLUGINS]
        if chosen is not None:
            os.environ[PLUGINS] = chosen
    log_config.configure(None)
    log_config.show_progress()
    app = build()
    open_debug_log(app, f"guard run {' '.join(sys.argv[1:])}")
    gc.freeze()
    gc.enable()
    return lambda run_dir: run_guard(app, Path(run_dir))


def go_on_without_guard(wrapper: str, error: Exception) -> NoReturn:
    """Replace this process by the wrapper, which then runs the body without a guard."""
    signal.alarm(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.stderr.write(f"opsctl: the guard cannot start: {type(error).__name__}: {error}\n")
    sys.stderr.flush()
    os.execvpe("bash", ["bash", wrapper], {**os.environ, "OPSCTL_GUARD_FAILED": "yes"})


def leave(code: int) -> NoReturn:
    """Exit without Python's own end: the next task waits for this one."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
