"""The program that srun starts for each rank: `python -m opsctl.guard.rank --logs DIR -- COMMAND...`

The program gives COMMAND its rank variables (RANK, WORLD_SIZE, ...), passes signals on, and exits as COMMAND exits. No
process of the rank outlives the program, which adopts the orphans below it; if the program is killed, COMMAND is killed
with it, and Slurm ends the step. The output goes line by line with the prefix `[<node>:<rank>]: ` to stdout and to the
log of the node; the log of a rank, of `--rank-logs` or alone on its node, has the output unchanged. A full disk or a
closed stdout neither ends nor blocks COMMAND.

The module imports little, and only from the standard library: all ranks start at once (launch/rank_wrapper.py).
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

from opsctl.guard.rank_activity import Activity
from opsctl.guard.rank_output import Copier, Lines, Log, Stdout, warn
from opsctl.guard.rank_signals import (
    SHELLS,
    STOP_SIGNALS,
    await_programs,
    find_stop_signal,
    list_children,
    read_name,
    send,
)

TYPE_CHECKING = False  # type checkers know the name; importing `typing` takes a tenth of a rank's start
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType
    from typing import NoReturn

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCONT)
KILL_TIMEOUT_S = 5.0  # a process that survives SIGKILL for so long hangs in the kernel
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
USAGE = "usage: python -m opsctl.guard.rank --logs|--rank-logs DIR -- COMMAND...  |  --free-port"


def main(argv: list[str]) -> int:
    if argv == ["--free-port"]:
        print(find_free_port())  # noqa: T201 (a program of its own, without click)
        return 0
    if len(argv) < 4 or argv[0] not in ("--logs", "--rank-logs") or argv[2] != "--":
        warn(USAGE)
        return 2
    return run(argv[1], argv[3:], is_log_own=argv[0] == "--rank-logs")


def run(logs: str, command: list[str], *, is_log_own: bool) -> int:
    variables = rank_variables(os.environ)
    node, rank = variables["TRAIN_NODE"], variables["RANK"]
    ranks = "" if is_log_own else name_ranks(os.environ, variables)
    open_standard_streams()
    process_control(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    signals, signals_end = os.pipe()
    os.set_blocking(signals_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(signals_end, warn_on_full_buffer=False)
    output, output_end = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        exec_command(parent, output_end, command, {**environment_of_rank(os.environ, rank), **variables})
    os.close(output_end)
    pass_signals_on(child, logs)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)

    log = Log(f"{logs}/{node}-{ranks or rank}.log", is_shared=bool(ranks))
    copier = Copier(log, Lines(f"[{node}:{rank}]: "), Stdout())
    activity = Activity(parent, f"{logs}/quiet/{node}", variables)
    copier.at_exit = lambda status: note_first_exit(logs, status)
    status = copier.copy_until_exit(output, signals, wait_for_command(child), meanwhile=activity.look)
    activity.mark("ended" if status == 0 else "")
    if not end_all_below():
        warn(f"{node}-{rank}: a process of this rank survives SIGKILL, hanging in the kernel")
    copier.finish(output)
    # A late signal must not end this process while Python exits, which restores the default handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    return end_as(status)


def open_standard_streams() -> None:
    """Open closed standard streams on /dev/null, because our pipes would otherwise take their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 (its own signature)


# --- the variables of the rank


def rank_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the rank variables that torch reads, from Slurm's environment; a world of one rank outside Slurm."""
    node, counts = int(env.get("SLURM_NODEID", "0")), count_tasks(env)
    if env.get("TRAIN_HOST_FILE"):  # Slurm numbers nodes by name, and ranks in the order of the file
        node = int(env.get("SLURM_PROCID", "0")) // counts[0]
    return {
        "SLURM_NODEID": str(node),
        "RANK": env.get("SLURM_PROCID", "0"),
        "WORLD_SIZE": env.get("SLURM_NTASKS", "1"),
        "LOCAL_RANK": env.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(counts[min(node, len(counts) - 1)]),
        "NODE_RANK": str(node),
        # trainer.contract.Env.NODE; importing the contract takes as long as everything else.
        "TRAIN_NODE": env.get("SLURMD_NODENAME") or os.uname().nodename,
    }


def name_ranks(env: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """Return the ranks of this node as `8..15`; empty if it has one, or ranks that do not follow each other."""
    count, node = int(variables["LOCAL_WORLD_SIZE"]), int(variables["NODE_RANK"])
    first = int(variables["RANK"]) - int(variables["LOCAL_RANK"])
    is_block = first == sum(count_tasks(env)[:node])
    return f"{first}..{first + count - 1}" if count > 1 and is_block else ""


def environment_of_rank(env: Mapping[str, str], rank: str) -> dict[str, str]:
    """Return the environment: the runs in experiment trackers that opsctl has named are for rank 0 alone."""
    named = env.get("TRAIN_TRACKER_RUNS", "").split() if rank != "0" else []
    dropped = (*named, f"SLURM_HOSTFILE={env.get('SLURM_HOSTFILE')}")  # would place the steps of the trainer
    return {name: value for name, value in env.items() if f"{name}={value}" not in dropped}


def count_tasks(env: Mapping[str, str]) -> list[int]:
    """Return the number of tasks of each node. `4(x2),3` means 4, 4 and 3."""
    counts: list[int] = []
    for part in (env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_NTASKS_PER_NODE") or "1").split(","):
        count, _, times = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    return counts


# --- COMMAND


def wait_for_command(child: int) -> Iterator[int | None]:
    """Yield the wait status of COMMAND, once a trainer that outlives a launcher has reacted to a stop signal, and None
    until then. Reaps orphans."""
    pid = status = 0
    name = ""
    while pid != child:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is None:
            yield None
            continue
        name = read_name(child) if ended.si_pid == child else ""
        pid, status = os.waitpid(ended.si_pid, 0)
    if number := find_stop_signal(os.waitstatus_to_exitcode(status)):
        yield from await_programs(number, holds_back=os.WIFEXITED(status) and name not in SHELLS)
    yield status


def exec_command(parent: int, output: int, command: list[str], env: dict[str, str]) -> NoReturn:
    """Replace this new process by COMMAND."""
    code = 127
    try:
        os.setpgid(0, 0)
        process_control(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Python ignores SIGPIPE and SIGXFSZ, and COMMAND would inherit that.
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


def pass_signals_on(child: int, logs: str) -> None:
    def pass_on(number: int, _: FrameType | None) -> None:
        if number in STOP_SIGNALS:
            note_once(f"{logs}/signalled", number)
        send(child, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)


def end_all_below() -> bool:
    """Kill every descendant of this process, which adopts all orphans. Return False if one survives."""
    deadline_s = time.monotonic() + KILL_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        for pid in list_children(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return False


def note_first_exit(logs: str, status: int) -> None:
    """Write the exit code of the rank that fails first to `first-exit`: srun ends the others and returns 143."""
    code = os.waitstatus_to_exitcode(status)
    if code:
        note_once(f"{logs}/first-exit", code if code > 0 else 128 - code)


def note_once(path: str, number: int) -> None:
    """Write a number to a file, unless another rank was faster."""
    with contextlib.suppress(OSError):  # FileExistsError
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(handle, f"{number}\n".encode())
        os.close(handle)


def end_as(status: int) -> int:
    """Return the exit code of COMMAND. If a signal ended COMMAND, end this process by the same signal."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    import resource  # noqa: PLC0415 (only here)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core file of COMMAND is the useful one
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


# --- the port on which the ranks meet


def find_free_port() -> int:
    """Return a free TCP port, if possible outside the range that the kernel assigns to connections."""
    import socket  # noqa: PLC0415 (only here)

    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:  # noqa: PTH123 (pathlib, see above)
        low, high = map(int, file.read().split())
    outside = [*range(10000, low), *range(high + 1, 65536)]
    candidates = [outside[int.from_bytes(os.urandom(4), "big") % len(outside)] for _ in range(64)] if outside else []
    for port in (*candidates, 0):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise OSError("no TCP port is free")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
