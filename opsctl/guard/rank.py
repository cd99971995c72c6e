"""What srun starts for each rank: `python -m opsctl.guard.rank --logs DIR -- COMMAND...`

It gives COMMAND the rank's place (RANK, WORLD_SIZE, ...), writes what it says to `DIR/<node>-<rank>.log` as it came and
to stdout line by line with the prefix `[<node>:<rank>]: `, passes signals on, ends as it ended, and lets no process of
the rank outlive it. Neither a full disk nor a reader that has gone ends or blocks COMMAND.

Standard library only, and little of it: it starts once per rank, all at once, from a shared file system.

Three processes: this one copies; its child, the keeper, waits for COMMAND, the keeper's child. Both adopt the orphans
below them, so that whichever of the two is killed, the other one ends all that is left of the rank.
"""

from __future__ import annotations

from opsctl.search_path import put_user_directories_last

put_user_directories_last()  # before anything else is imported

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from types import FrameType
from typing import NoReturn

from opsctl.guard.rank_output import Copier, Lines, Log, Stdout, read_number, say

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCONT)
KILL_SECONDS = 5.0  # a process that outlives SIGKILL for so long hangs in the kernel
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
USAGE = "usage: python -m opsctl.guard.rank --logs DIR -- COMMAND...  |  --free-port"


def main(argv: list[str]) -> int:
    if argv == ["--free-port"]:
        print(find_free_port())  # noqa: T201 (a program of its own, without click)
        return 0
    if len(argv) < 4 or argv[0] != "--logs" or argv[2] != "--":
        say(USAGE)
        return 2
    return run(argv[1], argv[3:])


def run(logs: str, command: list[str]) -> int:
    place = rank_variables(os.environ)
    name = f"{place['TRAIN_NODE']}-{place['RANK']}"
    open_what_is_closed()
    process_control(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    output, output_end = os.pipe()
    news, news_end = os.pipe()
    shim = os.getpid()
    if os.fork() == 0:
        keep(shim, output_end, news_end, command, {**os.environ, **place})
    os.close(output_end)
    os.close(news_end)
    if child := read_number(news):
        pass_signals_on(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)

    copier = Copier(Log(f"{logs}/{name}.log"), Lines(f"[{place['TRAIN_NODE']}:{place['RANK']}]: "), Stdout())
    status = copier.until_the_end(output, news, at_exit=lambda status: note_first_exit(logs, status))
    if not end_all_below():
        say(f"{name}: a process of this rank survives SIGKILL, hanging in the kernel")
    copier.finish(output)
    return end_as(status)


def open_what_is_closed() -> None:
    """Or else our pipes would take the numbers of stdin, stdout and stderr."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 (its own signature)


# --- what the rank is told


def rank_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The rank's place as torch names it, from what Slurm says; alone in the world outside Slurm."""
    node = int(env.get("SLURM_NODEID", "0"))
    per_node = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_NTASKS_PER_NODE") or "1"
    return {
        "RANK": env.get("SLURM_PROCID", "0"),
        "WORLD_SIZE": env.get("SLURM_NTASKS", "1"),
        "LOCAL_RANK": env.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(tasks_on(per_node, node)),
        "NODE_RANK": str(node),
        # trainer.contract.Env.NODE, which is not imported because it takes as long as all the rest.
        "TRAIN_NODE": env.get("SLURMD_NODENAME") or os.uname().nodename,
    }


def tasks_on(per_node: str, node: int) -> int:
    """How many tasks the node with this index has, where `4(x2),3` means 4, 4 and 3."""
    counts: list[int] = []
    for part in per_node.split(","):
        count, _, times = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    return counts[min(node, len(counts) - 1)]


# --- the keeper and COMMAND


def keep(shim: int, output: int, news: int, command: list[str], env: dict[str, str]) -> NoReturn:
    """Start COMMAND, tell its pid and then how it ended, and end the rank when the shim is killed."""

    def end_without_shim(*_: object) -> None:
        if os.getppid() != shim:
            end_all_below()
            os._exit(1)

    try:
        process_control(PR_SET_CHILD_SUBREAPER, 1)
        for number in PASSED_ON:
            signal.signal(number, end_without_shim)
        process_control(PR_SET_PDEATHSIG, signal.SIGTERM)
        keeper = os.getpid()
        child = os.fork()
        if child == 0:
            become(keeper, output, command, env)
        os.close(output)
        os.write(news, child.to_bytes(8, "big"))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        end_without_shim()  # it may have been killed before it was our parent to die with
        pid = status = 0
        while pid != child:
            pid, status = os.waitpid(-1, 0)
        os.write(news, status.to_bytes(8, "big"))
    except OSError as error:
        say(f"cannot start {command[0]}: {error.strerror}")
    finally:
        os._exit(0)


def become(keeper: int, output: int, command: list[str], env: dict[str, str]) -> NoReturn:
    """Turn this new process into COMMAND."""
    code = 127
    try:
        os.setpgid(0, 0)
        process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Python ignores the last two, and what is ignored stays so in COMMAND.
        for number in (*PASSED_ON, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.execvpe(command[0], command, env)
    except FileNotFoundError:
        os.write(2, f"Cannot start {command[0]}: no such program\n".encode(errors="surrogateescape"))
    except OSError as error:
        os.write(2, f"Cannot start {command[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
        code = 126
    finally:
        os._exit(code)


def process_control(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def pass_signals_on(child: int) -> None:
    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)


def end_all_below() -> bool:
    """Kill every process below this one, which has adopted all orphans. False if one could not be killed."""
    until = time.monotonic() + KILL_SECONDS
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        for pid in find_children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return False


def find_children() -> list[int]:
    me = str(os.getpid())
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 (see below)
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", errors="replace") as file:  # noqa: PTH123 (pathlib takes longer to import than all the rest)
            if file.read().rpartition(")")[2].split()[1] == me:
                found.append(int(name))
    return found


def note_first_exit(logs: str, status: int) -> None:
    """Leave the exit code of the rank that failed first for the body: srun ends the others, and says 143 for all."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return
    with contextlib.suppress(OSError):  # FileExistsError: another rank was first
        handle = os.open(f"{logs}/first-exit", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(handle, f"{code if code > 0 else 128 - code}\n".encode())
        os.close(handle)


def end_as(status: int) -> int:
    """The exit code, unless COMMAND was ended by a signal: then so is this process."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    import resource  # noqa: PLC0415 (only here)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # COMMAND has left the core that matters
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


# --- a port for the ranks to meet at


def find_free_port() -> int:
    """A TCP port that is free now; where possible none that the kernel could give to a connection in the meantime."""
    import socket  # noqa: PLC0415 (only here)

    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:  # noqa: PTH123 (pathlib, see above)
        low, high = map(int, file.read().split())
    outside = [*range(10000, low), *range(high + 1, 65536)]
    draws = [outside[int.from_bytes(os.urandom(4), "big") % len(outside)] for _ in range(64)] if outside else []
    for port in (*draws, 0):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise OSError("no TCP port is free")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
