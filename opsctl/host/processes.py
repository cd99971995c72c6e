"""Processes of this machine: identify them, find those that belong together, end all descendants."""

import contextlib
import ctypes
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process, distinguished from a later process with the same number."""

    pid: int
    started: int
    """In kernel ticks since boot, which do not change when the clock is set."""

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """Return the process with this number; None without one. A zombie is no process."""
        row = _read_stat(pid)
        return None if row is None else row.identity

    @property
    def is_alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def send(self, number: int) -> None:
        """Send a signal to this process, never to a later one with the same number."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def own_process() -> ProcessId:
    process = ProcessId.of(os.getpid())
    assert process is not None, "this process runs"
    return process


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    """The parsed /proc/<pid>/stat of a process that is not a zombie."""

    identity: ProcessId
    parent: int
    name: str


def _read_stat(pid: int) -> _Stat | None:
    try:
        # The name, in brackets, may contain any text: the fields start after the last closing bracket.
        head, _, tail = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
        state, parent, *rest = tail.split()
    except (OSError, ValueError):
        return None
    if state in "ZX":
        return None
    return _Stat(identity=ProcessId(pid=pid, started=int(rest[17])), parent=int(parent), name=head.partition("(")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCandidate:
    """A running process, for a predicate of `find_processes`. The methods read /proc when called."""

    pid: int
    name: str

    def environment(self) -> dict[str, str]:
        """Return the environment as it was when the process started; empty where this user may not read it."""
        # Not psutil's: a program that writes its title over its arguments, as slurmstepd does, leaves a gap at the
        # start, where psutil stops reading.
        try:
            rows = os.fsdecode(Path(f"/proc/{self.pid}/environ").read_bytes()).split("\0")
        except OSError:
            return {}
        return dict(row.split("=", 1) for row in rows if "=" in row)

    def open_files(self) -> list[str]:
        """Return the paths of the open files; empty where this user may not read them."""
        paths = []
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # closed since
                    paths.append(str(descriptor.readlink()))
        return paths


def find_processes(belongs: Callable[[ProcessCandidate], bool]) -> dict[ProcessId, str]:
    """Return every process that `belongs` and all processes below those, with their names; never this process.

    Takes one pass over /proc. Processes of other users are found only below one that belongs.
    """
    import psutil  # noqa: PLC0415 (slow import: a guard needs none of this before its body runs)

    own = os.getpid()
    stats: dict[int, _Stat] = {}
    children: dict[int, list[int]] = {}
    waiting: list[int] = []
    for pid in psutil.pids():
        if pid == own or (stat := _read_stat(pid)) is None:
            continue
        stats[pid] = stat
        children.setdefault(stat.parent, []).append(pid)
        if belongs(ProcessCandidate(pid=pid, name=stat.name)):
            waiting.append(pid)
    members: dict[ProcessId, str] = {}
    while waiting:
        stat = stats[waiting.pop()]
        if stat.identity not in members:
            members[stat.identity] = stat.name
            waiting += children.get(stat.identity.pid, ())
    return members


def memory_of(processes: Iterable[ProcessId]) -> int:
    """Return the memory of these processes, in bytes; shared memory counts once, ended processes count 0."""
    import psutil  # noqa: PLC0415 (slow import: a guard needs none of this before its body runs)

    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_alive:
                total += psutil.Process(process.pid).memory_full_info().pss
    return total


def die_with_parent(number: int) -> None:
    """Ask the kernel to send this process a signal when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant, so that none escapes `end_descendants`."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def count_descendants() -> int:
    """Return the number of running descendants. A zombie is no process."""
    import psutil  # noqa: PLC0415 (slow import: a guard needs none of this before its body runs)

    return sum(ProcessId.of(child.pid) is not None for child in psutil.Process().children(recursive=True))


def end_descendants(*, grace: float) -> int:
    """End every descendant: TERM, then KILL after `grace` seconds. Return their number."""
    import psutil  # noqa: PLC0415 (slow import: a guard needs none of this before its body runs)

    descendants = psutil.Process().children(recursive=True)
    for process in descendants:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, stubborn = psutil.wait_procs(descendants, timeout=grace)
    for process in stubborn:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(stubborn, timeout=5)
    return len(descendants)


def signal_below(pid: int, number: int, *, spared: Collection[str] = ()) -> int:
    """Send a signal to the descendants of a process; return their number.

    The children of the process themselves, and programs with a `spared` name with all below, get no signal.
    """
    import psutil  # noqa: PLC0415 (slow import: a guard needs none of this before its body runs)

    count = 0
    with contextlib.suppress(psutil.Error):
        waiting: list[psutil.Process] = []
        for child in psutil.Process(pid).children():
            waiting += child.children()
        while waiting:
            process = waiting.pop()
            with contextlib.suppress(psutil.Error):
                if process.name() in spared:
                    continue
                waiting += process.children()
                process.send_signal(number)
                count += 1
    return count
