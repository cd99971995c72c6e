"""The body of a train as a child, with a keeper in between: whichever of guard and keeper is killed, the other ends all
that runs below. Without it an orphan of the body would outlive a guard that was killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from opsctl.guard.rank import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, end_all_below, process_control

CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
"""Slurm sends these to every process of a job: the keeper stays for as long as the body."""
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


@dataclass(slots=True)
class Body:
    """A body that was started. Its exit code is told as a shell does: 128 and the signal's number for one that ended
    it."""

    keeper: int
    code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.code is None:
            try:
                pid, status = os.waitpid(self.keeper, os.WNOHANG)
            except ChildProcessError:  # it was ended, and its end seen, with all that ran below
                self.code = 128 + signal.SIGKILL
            else:
                self.code = shell_code(status) if pid else None
        return self.code

    def pass_usr2_on(self) -> None:
        """To the body's process group: of all signals the only one that the keeper passes on."""
        if self.poll() is None:
            os.kill(self.keeper, signal.SIGUSR2)


def shell_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def start_body(argv: Sequence[str], env: Mapping[str, str]) -> Body:
    """Start it in a session of its own. To be called before there are threads."""
    guard = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        keep(guard, argv, env)
    return Body(keeper)


def keep(guard: int, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Wait for the body and exit as it does, or end all of it once the guard is gone."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        process_control(PR_SET_CHILD_SUBREAPER, 1)

        def end_without_guard(*_: object) -> None:
            if os.getppid() != guard:
                end_all_below()
                os._exit(1)

        for number in CAUGHT:
            signal.signal(number, end_without_guard)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        process_control(PR_SET_PDEATHSIG, signal.SIGTERM)
        keeper = os.getpid()
        body = os.fork()
        if body == 0:
            become(keeper, argv, env)
        signal.signal(signal.SIGUSR2, lambda *_: os.killpg(body, signal.SIGUSR2))
        end_without_guard()  # it may have gone before it was our parent to die with
        code = wait_for(body)
    except OSError as error:
        os.write(2, f"opsctl guard: the body cannot be started: {error.strerror}\n".encode())
    finally:
        os._exit(code)


def wait_for(body: int) -> int:
    """Until this one ends; orphans that end before are taken note of, too."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == body:
            return shell_code(status)


def become(keeper: int, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Turn this new process into the body."""
    try:
        os.setpgid(0, 0)
        process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        for number in (signal.SIGUSR2, *IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(argv[0], list(argv), dict(env))
    finally:
        os._exit(127)
