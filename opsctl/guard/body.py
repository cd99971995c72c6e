"""The body of a train as a child process, with a subreaper between guard and body.

If the guard is killed, the subreaper kills everything below itself; if the subreaper is killed, the guard does. Without
the subreaper, orphans of the body would outlive a killed guard.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from opsctl.guard.rank import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, end_all_below, process_control

SUBREAPER_CATCHES = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Slurm sends these signals to every process of a job. The subreaper survives them, because the body may still save."""
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


@dataclass(slots=True)
class Body:
    """A started body. Its exit code follows the shell's convention: 128 plus the number of a fatal signal."""

    subreaper: int
    code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the body runs."""
        if self.code is None:
            try:
                pid, status = os.waitpid(self.subreaper, os.WNOHANG)
            except ChildProcessError:  # the guard has killed and reaped the subreaper with all other descendants
                self.code = 128 + signal.SIGKILL
            else:
                self.code = shell_code(status) if pid else None
        return self.code

    def pass_usr2_on(self) -> None:
        """Send SIGUSR2 to the body's process group. The subreaper passes no other signal on."""
        if self.poll() is None:
            os.kill(self.subreaper, signal.SIGUSR2)


def shell_code(status: int) -> int:
    """Return the exit code that a shell would report for a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def start_body(argv: Sequence[str], env: Mapping[str, str]) -> Body:
    """Start the body in its own session. Call this before starting threads."""
    guard = os.getpid()
    subreaper = os.fork()
    if subreaper == 0:
        run_subreaper(guard, argv, env)
    return Body(subreaper)


def run_subreaper(guard: int, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Start the body, wait for its end and exit with its code. Kill everything below if the guard dies."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        process_control(PR_SET_CHILD_SUBREAPER, 1)

        def end_without_guard(*_: object) -> None:
            if os.getppid() != guard:
                end_all_below()
                os._exit(1)

        for number in SUBREAPER_CATCHES:
            signal.signal(number, end_without_guard)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        process_control(PR_SET_PDEATHSIG, signal.SIGTERM)
        subreaper = os.getpid()
        body = os.fork()
        if body == 0:
            exec_body(subreaper, argv, env)
        signal.signal(signal.SIGUSR2, lambda *_: os.killpg(body, signal.SIGUSR2))
        end_without_guard()  # the guard may have died before PR_SET_PDEATHSIG was set
        code = wait_for(body)
    except OSError as error:
        os.write(2, f"opsctl guard: the body cannot be started: {error.strerror}\n".encode())
    finally:
        os._exit(code)


def wait_for(body: int) -> int:
    """Wait for the body and return its exit code. Orphans that end earlier are reaped."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == body:
            return shell_code(status)


def exec_body(subreaper: int, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this new process by the body."""
    try:
        os.setpgid(0, 0)
        process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != subreaper:
            os._exit(1)
        for number in (signal.SIGUSR2, *IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(argv[0], list(argv), dict(env))
    finally:
        os._exit(127)
