"""Whether the processes of a rank do anything. For rank.py: standard library only, quick to import.

A rank that has done nothing for MARK_AFTER_S gets a mark, which the guard reads (quiet_ranks.py). A file has the marks
of one node, each at the place of its LOCAL_RANK:

- `stopped RANK OF`: a process that has done a part of the rank's work is stopped by a signal (state T), and only
  another signal can wake it; the other processes of the rank do not use the CPU either;
- `idle RANK OF`: no process of the rank uses the CPU, reads or writes, no thread waits for a disk (state D), and none
  of the processes has work done elsewhere, as a second srun or a container engine has;
- `ended RANK OF`: the rank has exited with 0. Other ranks may still save, or wait for this rank for ever.

Ranks that only wait for another rank are idle. Ranks that wait for a GPU may use the CPU all the time.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping

LOOK_EVERY_S = 2.0
MARK_AFTER_S = 8.0
IDLE_SHARE = 0.03
"""Of one CPU: threads of torch and NCCL that only look at their queues every 0.1 s use less."""
IDLE_BYTES_PER_S = 256 << 10
"""Bytes read and written: a save or a download through a slow file system needs hardly any CPU. Monitors need less."""
WORK_SHARE = 0.1
"""Share of the rank's CPU time that shows a part of its work: a stopped helper, such as a viewer, stops no training."""
START_S = 0.1
"""CPU time that every process may need for its start."""
WORKS_ELSEWHERE = frozenset(
    (
        *("srun", "salloc", "sbatch", "ssh", "rsh", "pdsh", "clush", "kubectl", "docker", "nerdctl", "podman-remote"),
        *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun", "jsrun", "aprun", "flux"),
    )
)
"""Programs that wait for processes which are not below the rank wrapper."""
MAX_THREADS = 4096
"""Threads of a rank whose state is looked at."""
MARK_BYTES = 32
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Activity:
    """Marks a rank while its processes do nothing."""

    def __init__(self, root: int, marks: str, variables: Mapping[str, str]) -> None:
        """The processes of the rank are `root`, unless `root` is this process, and all below `root`.

        `marks` is the file of the node, `variables` are those of the rank.
        """
        self.root = root
        self.marks = marks
        self.variables = variables
        self.looked_s = time.monotonic()
        self.ticks: dict[int, int] | None = None
        self.moved_bytes: int | None = None
        self.busiest = root
        self.busiest_ticks = 0
        self.kind = ""
        self.since_s = 0.0
        self.marked = ""  # the body removes the marks that an earlier step has left

    def look(self) -> None:
        """Look at the processes, if the last look was LOOK_EVERY_S ago, and set or remove the mark."""
        now = time.monotonic()
        past_s = now - self.looked_s
        if past_s < LOOK_EVERY_S:
            return
        self.looked_s = now
        # Slurm suspends the rank wrapper with the rank: a long pause between two looks says nothing about the rank.
        kind = "" if past_s > 3 * LOOK_EVERY_S else self.find_kind(past_s)
        if kind != self.kind:
            self.kind, self.since_s = kind, now
        self.mark(kind if now - self.since_s >= MARK_AFTER_S else "")

    def find_kind(self, past_s: float) -> str:
        """Return `stopped`, `idle`, or an empty string for a rank that works or may work."""
        most_ticks = IDLE_SHARE * past_s * TICKS_PER_S
        if self.is_busiest_at_work(most_ticks):
            self.ticks = self.moved_bytes = None
            return ""
        rows = [row for row in tree(self.root) if row[0] != os.getpid()]
        before, self.ticks = self.ticks, {pid: ticks for pid, _, ticks in rows}
        moved_before, self.moved_bytes = self.moved_bytes, sum(map(count_moved_bytes, self.ticks))
        if before is None or moved_before is None or not rows:
            return ""
        used = {pid: ticks - before.get(pid, 0) for pid, ticks in self.ticks.items()}
        self.busiest = max(used, key=lambda pid: used[pid])
        if sum(used.values()) > most_ticks:
            return ""
        if any(state == "T" for _, state, _ in rows) and is_work_stopped(rows):
            return "stopped"
        moves = self.moved_bytes - moved_before > IDLE_BYTES_PER_S * past_s
        if moves or before.keys() != self.ticks.keys() or any(map(may_work, self.ticks)):
            return ""
        return "idle"

    def is_busiest_at_work(self, most_ticks: float) -> bool:
        """Return whether the process that used the CPU most, at the last full look, still does: the cheap look."""
        before, self.busiest_ticks = self.busiest_ticks, 0
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, self.busiest_ticks = read_process(self.busiest)
            return state != "T" and bool(before) and self.busiest_ticks - before > most_ticks
        return False

    def mark(self, kind: str) -> None:
        """Leave the mark of `kind`, or no mark. What fails is tried again at the next look.

        The file is closed each time: only then do other nodes see the mark on every file system.
        """
        if kind == self.marked:
            return
        mark = f"{kind} {self.variables['RANK']} {self.variables['WORLD_SIZE']}" if kind else ""
        with contextlib.suppress(OSError):
            handle = os.open(self.marks, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                os.pwrite(handle, f"{mark:{MARK_BYTES - 1}}\n".encode(), int(self.variables["LOCAL_RANK"]) * MARK_BYTES)
            finally:
                os.close(handle)
            self.marked = kind


def tree(root: int) -> Iterator[tuple[int, str, int]]:
    """Yield number, state and CPU time in ticks of `root` and all its descendants.

    A zombie has ended: its time counts once its parent has read its exit code.
    """
    rows = dict(processes())
    for pid, (state, _, ticks) in rows.items():
        above, depth = pid, 0
        while above != root and above in rows and depth < len(rows):
            above, depth = rows[above][1], depth + 1
        if above == root:
            yield pid, state, ticks


def processes() -> Iterator[tuple[int, tuple[str, int, int]]]:
    """Yield number, state, parent and CPU time in ticks of every process."""
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 (as above)
        with contextlib.suppress(OSError, ValueError, IndexError):
            yield int(name), read_process(int(name))


def read_process(pid: int) -> tuple[str, int, int]:
    """Return state, parent and CPU time in ticks. Raises OSError, ValueError or IndexError without such a process."""
    fields = read_fields(pid)
    return fields[0], int(fields[1]), sum(map(int, fields[11:15]))


def read_fields(process: int | str) -> list[str]:
    """Return the fields of a process, or of a thread `PID/task/TID`, the state first. Raises OSError."""
    with open(f"/proc/{process}/stat", errors="replace") as file:  # noqa: PTH123 (as above)
        # The name, in brackets, may contain any text: the fields start after the last closing bracket.
        return file.read().rpartition(")")[2].split()


def is_work_stopped(rows: list[tuple[int, str, int]]) -> bool:
    """Return whether a stopped process has done a part of the work of all, by its own CPU time."""
    own_s = {pid: measure_cpu_s(pid) for pid, _, _ in rows}
    most_s = max(own_s.values(), default=0.0)
    enough_s = min(most_s, max(WORK_SHARE * sum(own_s.values()), START_S))
    return any(state == "T" and own_s[pid] >= enough_s for pid, state, _ in rows)


def measure_cpu_s(pid: int) -> float:
    """Return the CPU time of the running threads of a process, without that of ended children."""
    total_ns = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for thread in list_threads(pid):
            with open(f"/proc/{thread}/schedstat") as file:  # noqa: PTH123 (as above)
                total_ns += int(file.read().split()[0])
        return total_ns / 1e9
    with contextlib.suppress(OSError, ValueError, IndexError):  # a kernel without schedstat
        return sum(map(int, read_fields(pid)[11:13])) / TICKS_PER_S
    return 0.0


def list_threads(pid: int) -> list[str]:
    """Return the threads of a process by their places in /proc. Raises OSError without such a process."""
    return [f"{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")[:MAX_THREADS]]  # noqa: PTH208 (as above)


def count_moved_bytes(pid: int) -> int:
    """Return the bytes that a process has read and written, also by its caches; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/io") as file:  # noqa: PTH123 (as above)
        return sum(int(line.split()[1]) for line in file if line.startswith(("rchar:", "wchar:")))
    return 0


def may_work(pid: int) -> bool:
    """Return whether a thread of the process waits for a disk (state D), or the process has work done elsewhere."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/comm", errors="replace") as file:  # noqa: PTH123 (as above)
            if file.read().strip() in WORKS_ELSEWHERE:
                return True
        for thread in list_threads(pid):
            with contextlib.suppress(OSError, IndexError):
                if read_fields(thread)[0] == "D":
                    return True
    return False
