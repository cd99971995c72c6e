"""Parse stacks that py-spy or faulthandler printed, and group the ranks by place, the smallest group first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from ClusterShell.RangeSet import RangeSet

from opsctl.base.tables import read_package_table, read_patterns
from opsctl.diagnosis.line_origin import UNKNOWN_ORIGIN, LineOrigin, split

MAX_NAMED_NODES = 4
MAX_NAMED_PIDS = 8
NO_STACK = "without a stack"
REFUSED = "unknown: py-spy is not permitted"
PTRACE = (
    "py-spy needs ptrace: set kernel.yama.ptrace_scope = 0 on the nodes, or use ssh as root; "
    "without ptrace use --signal, if the trainer handles USR2"
)

GONE = "gone"
STATES: dict[str, str] = read_package_table("diagnosis/patterns.toml")["states"]
"""Descriptions of the kernel's process states, and of a process that is gone."""
CANNOT_TRAIN = frozenset({"T", "t", "D", "Z", "X"})

_PATTERNS = read_patterns("diagnosis/patterns.toml", "stacks")
_WRAPPERS = frozenset({"wrapper", "inner", "_fn", "decorate_context", "wrapped_fn"})
_FOREIGN = ("torch/", "threading.py", "concurrent/futures/", "selectors.py", "socket.py", "subprocess.py")
"""Files of libraries. A place names the line of the program that calls into these files."""


@dataclass(frozen=True, slots=True)
class Frame:
    function: str
    file: str
    line: int

    @property
    def is_foreign(self) -> bool:
        """Return whether the frame belongs to a library."""
        path = self.file.rpartition("site-packages/")[2].rpartition("dist-packages/")[2]
        is_library = path.startswith(_FOREIGN) or any(f"/{prefix}" in path for prefix in _FOREIGN)
        return is_library or not self.is_python

    @property
    def is_python(self) -> bool:
        return self.file.endswith((".py", ">"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The main thread of one process, the innermost frame first."""

    node: str = ""
    rank: int | None = None
    pid: int | None = None
    frames: tuple[Frame, ...] = ()
    refused: bool = False
    """True if py-spy had no permission to read the stack."""
    state: str = ""
    """A key of STATES; empty if unknown."""
    kernel_function: str = ""
    """Where the process waits in the kernel, as far as this user may know."""

    @property
    def is_silent(self) -> bool:
        """Return whether the rank gave no stack, although nothing forbids it."""
        return not self.frames and not self.refused

    @property
    def spot(self) -> "Spot":
        """Where the process is."""
        if not self.frames:
            return Spot(refused=self.refused, state="" if self.refused else self.state)
        python_frames = [frame for frame in self.frames if frame.is_python and frame.function not in _WRAPPERS]
        innermost = (python_frames or self.frames)[0]
        caller = next((frame for frame in self.frames if not frame.is_foreign), innermost)
        # A rank that sleeps, or is in the kernel for a moment, waits like the others at its place.
        state = self.state if self.state in {"T", "t"} else ""
        return Spot(function=innermost.function, file=PurePath(caller.file).name, line=caller.line, state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """What ranks share that wait for the same: the innermost function and the line of the program."""

    function: str = ""
    """Empty without a stack."""
    file: str = ""
    line: int = 0
    refused: bool = False
    state: str = ""

    def describe(self, *, no_stack: str = NO_STACK) -> str:
        """Return `broadcast at engine.py:540`, or why there is no stack."""
        if self.refused:
            return REFUSED
        place = f"{self.function} at {self.file}:{self.line}" if self.function else no_stack
        description = STATES.get(self.state, "")
        gap = ", " if self.function else ": "
        return f"{place}{gap}{description}" if description else place


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """The ranks at one place."""

    spot: Spot
    stacks: tuple[Stack, ...]

    @property
    def is_known(self) -> bool:
        return bool(self.stacks[0].frames)

    def describe(self, *, no_stack: str = NO_STACK) -> str:
        """Return such as `2 ranks (node r10i6n5: 4-5) in broadcast at engine.py:540`."""
        place = f"{'in ' * self.is_known}{self.spot.describe(no_stack=no_stack)}"
        return f"{_count_processes(self.stacks)} ({self._render_nodes()}) {place}"

    def _render_nodes(self) -> str:
        stacks_by_node: dict[str, list[Stack]] = {}
        for stack in self.stacks:
            stacks_by_node.setdefault(stack.node, []).append(stack)
        parts = []
        for node, stacks in list(stacks_by_node.items())[:MAX_NAMED_NODES]:
            prefix = f"node {node}: " if node else ""
            parts.append(f"{prefix}{_render_ranks(stacks)}")
        if len(stacks_by_node) > MAX_NAMED_NODES:
            parts.append(f"{len(stacks_by_node) - MAX_NAMED_NODES} more nodes")
        return "; ".join(parts)


def _count_processes(stacks: Sequence[Stack]) -> str:
    """Return `2 ranks`, or `2 processes` if any rank is unknown."""
    count = len(stacks)
    if all(stack.rank is not None for stack in stacks):
        return f"{count} rank{'s' * (count != 1)}"
    return f"{count} process{'es' * (count != 1)}"


def _render_ranks(stacks: Sequence[Stack]) -> str:
    """Return the ranks as `4-5`, or the PIDs if any rank is unknown."""
    ranks = [stack.rank for stack in stacks if stack.rank is not None]
    if len(ranks) == len(stacks):
        return str(RangeSet(",".join(map(str, sorted(ranks)))))
    pids = [str(stack.pid) for stack in stacks if stack.pid is not None]
    if not pids:
        return "?"
    more = ", ..." if len(pids) > MAX_NAMED_PIDS else ""
    return f"pid {', '.join(pids[:MAX_NAMED_PIDS])}{more}"


def group_stacks(stacks: Iterable[Stack]) -> list[StackGroup]:
    """Group stacks by spot: silent ranks, then the smallest group, for which the others wait; refused ranks last."""
    stacks_by_spot: dict[Spot, list[Stack]] = {}
    for stack in stacks:
        stacks_by_spot.setdefault(stack.spot, []).append(stack)
    groups = []
    for spot, members in stacks_by_spot.items():
        in_order = sorted(members, key=lambda stack: (stack.rank or 0, stack.node))
        groups.append(StackGroup(spot=spot, stacks=tuple(in_order)))
    return sorted(
        groups, key=lambda group: (group.stacks[0].refused, group.is_known, len(group.stacks), group.spot.describe())
    )


PY_SPY_READS = frozenset({"R", "S", "D", "T", "t"})
"""States of processes whose stacks py-spy can read without stopping them."""


def render_stacks(stacks: Sequence[Stack], *, ranks: int | None = None) -> list[str]:
    """Return a line on the ranks that did not answer, then a line for each group. `ranks` is the number of ranks."""
    lines = [group.describe() for group in group_stacks(stacks)]
    lines += [PTRACE] if any(stack.refused for stack in stacks) else []
    missing = (ranks or 0) - len(stacks)
    if missing <= 0:
        return lines
    numbers = find_missing_ranks(stacks, ranks or 0)
    named = f": {RangeSet(','.join(map(str, numbers)))}" if len(numbers) == missing else ""
    return [f"{missing} of {ranks} ranks did not answer{named}", *lines]


def find_missing_ranks(stacks: Iterable[Stack], ranks: int) -> list[int]:
    """Return the ranks of which no process is known; none if a process without a rank may be any of them."""
    known = {stack.rank for stack in stacks}
    return [] if None in known else [rank for rank in range(ranks) if rank not in known]


def add_processes(stacks: Iterable[Stack], processes: Iterable[Stack], *, ranks: int, is_complete: bool) -> list[Stack]:
    """Add the states of the ranks' processes, and the ranks without a stack.

    If the list of processes `is_complete`, a rank without a process is gone.
    """
    found = {process.rank: process for process in processes}
    merged = [
        replace(stack, state=found[stack.rank].state, pid=found[stack.rank].pid, node=found[stack.rank].node)
        if stack.rank in found
        else stack
        for stack in stacks
    ]
    known = {stack.rank for stack in merged}
    merged += [replace(process, frames=()) for rank, process in found.items() if rank not in known]
    if is_complete:
        merged += [Stack(rank=rank, state=GONE) for rank in find_missing_ranks(merged, ranks)]
    return merged


# --- parsing


@dataclass(slots=True)
class _Thread:
    is_main: bool
    frames: list[Frame] = field(default_factory=list)


@dataclass(slots=True)
class _Process:
    stack: Stack
    """What is known of the process, without frames."""
    threads: list[_Thread] = field(default_factory=list)
    is_from_py_spy: bool = False
    """True for a dump of py-spy, False for a dump that the process printed itself."""

    def build_stack(self) -> Stack:
        frames = tuple(self._find_main_frames())
        return replace(self.stack, frames=frames, refused=self.stack.refused and not frames)

    def _find_main_frames(self) -> list[Frame]:
        """Return the frames of the main thread: py-spy names it, faulthandler prints it last.

        The thread that dumps the stacks is never the main thread.
        """
        threads = [thread for thread in self.threads if thread.frames]
        named = [thread for thread in threads if thread.is_main]
        others = [thread for thread in threads if not any(frame.function == "_dump" for frame in thread.frames)]
        main = named or others[-1:]
        return main[0].frames if main else []


def parse(text: bytes, known: LineOrigin = UNKNOWN_ORIGIN) -> list[Stack]:
    """Return the stack of every process in the output of py-spy or faulthandler. Never raises.

    The output may be part of a log with prefixes. The last dump of a process counts. `known` facts about the origin
    take precedence over prefixes.
    """
    reader = _StackReader()
    for line in text.split(b"\n"):
        origin, data = split(line, known)
        reader.read_line(origin, data.decode(errors="replace").rstrip())
    return [process.build_stack() for process in reader.processes.values()]


@dataclass(slots=True)
class _StackReader:
    processes: dict[tuple[str, int | None, int | None], _Process] = field(default_factory=dict)
    current: dict[LineOrigin, _Process] = field(default_factory=dict)

    def read_line(self, origin: LineOrigin, text: str) -> None:
        if header := _PATTERNS["header"].match(text):
            node, rank, pid, state, function = header.groups(default="")
            function = function.removeprefix("0")  # "0": hidden from this user
            stack = Stack(node=node, rank=int(rank), pid=int(pid), state=state, kernel_function=function)
            self._begin(origin, _Process(stack, is_from_py_spy=True))
        elif name := _PATTERNS["process"].match(text):
            self._begin_named(origin, int(name[1]))
        elif _PATTERNS["dump_start"].match(text):
            self._begin(origin, _Process(Stack(node=origin.node, rank=origin.rank)))
        elif thread := _PATTERNS["thread"].match(text):
            self._begin_thread(origin, thread[1], is_main='"MainThread"' in text)
        elif origin in self.current:
            self._read_frame(self.current[origin], text)

    def _read_frame(self, process: _Process, text: str) -> None:
        frame = _parse_frame(text) if process.threads else None
        if frame:
            process.threads[-1].frames.append(frame)
        elif process.is_from_py_spy and _PATTERNS["forbidden"].search(text):
            process.stack = replace(process.stack, refused=True)

    def _begin(self, origin: LineOrigin, process: _Process) -> None:
        self.current[origin] = process
        self.processes[process.stack.node, process.stack.rank, process.stack.pid] = process

    def _begin_named(self, origin: LineOrigin, pid: int) -> None:
        process = self.current.get(origin)
        if process is None or process.stack.pid != pid:
            self._begin(origin, _Process(Stack(node=origin.node, rank=origin.rank, pid=pid)))

    def _begin_thread(self, origin: LineOrigin, number: str, *, is_main: bool) -> None:
        process = self.current.get(origin)
        if process is None or (is_main and any(thread.is_main for thread in process.threads)):
            # py-spy numbers the main thread of a process by the PID.
            pid = int(number) if is_main and number.isdecimal() else None
            process = _Process(Stack(node=origin.node, rank=origin.rank, pid=pid))
            self._begin(origin, process)
        process.threads.append(_Thread(is_main))


def _parse_frame(text: str) -> Frame | None:
    if match := _PATTERNS["faulthandler"].match(text):
        return Frame(match[3], match[1], int(match[2]))
    if match := _PATTERNS["pyspy"].match(text):
        return Frame(match[1], match[2], int(match[3] or 0))
    return None
