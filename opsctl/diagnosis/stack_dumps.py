"""Where the ranks are: stacks as py-spy and faulthandler print them, grouped by place, the odd ones first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from ClusterShell.RangeSet import RangeSet

from opsctl.diagnosis.speakers import NOBODY, Speaker, split

SHOWN_NODES = 4
NOWHERE = "nowhere that can be told"
REFUSED = "unknown: py-spy may not look there"
PTRACE = (
    "py-spy needs ptrace: kernel.yama.ptrace_scope = 0 on the nodes, or root by ssh; without it --signal, "
    "if the trainer handles USR2"
)

_HEADER = re.compile(r"== node (\S+) rank (\d{1,7}) pid (\d+)")
_PROCESS = re.compile(r"Process (\d+): ")
_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+|\d+)")
_ANEW = re.compile(r"at \d+\.\d+$")
_FAULTHANDLER = re.compile(r'  File "([^"]*)", line (\d+) in (.+)')
_PYSPY = re.compile(r"    (\S.*?) \(([^()]+?)(?::(\d+))?\)$")
_FORBIDDEN = re.compile(r"permission denied|operation not permitted", re.IGNORECASE)
_WRAPPERS = frozenset({"wrapper", "inner", "_fn", "decorate_context", "wrapped_fn"})
_FOREIGN = ("torch/", "threading.py", "concurrent/futures/", "selectors.py", "socket.py", "subprocess.py")
"""Files of which a line says little: the place is where they were called from."""


@dataclass(frozen=True, slots=True)
class Frame:
    function: str
    file: str
    line: int

    @property
    def is_foreign(self) -> bool:
        path = self.file.rpartition("site-packages/")[2].rpartition("dist-packages/")[2]
        return path.startswith(_FOREIGN) or any(f"/{literal}" in path for literal in _FOREIGN) or not self.is_python

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
    """py-spy was not allowed to look."""

    @property
    def place(self) -> str:
        """`broadcast at engine.py:540`: what it does, and which line of the program called it."""
        if not self.frames:
            return REFUSED if self.refused else NOWHERE
        python = [frame for frame in self.frames if frame.is_python and frame.function not in _WRAPPERS]
        inner = (python or self.frames)[0]
        caller = next((frame for frame in self.frames if not frame.is_foreign), inner)
        return f"{inner.function} at {PurePath(caller.file).name}:{caller.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """The ranks that are at one place."""

    place: str
    stacks: tuple[Stack, ...]

    @property
    def is_known(self) -> bool:
        return bool(self.stacks[0].frames)

    def __str__(self) -> str:
        """`2 ranks (node r10i6n5: 4-5) in broadcast at engine.py:540`"""
        where = f"in {self.place}" if self.is_known else self.place
        return f"{_count(self.stacks)}{self._nodes()} {where}"

    def _nodes(self) -> str:
        nodes: dict[str, list[Stack]] = {}
        for stack in self.stacks:
            nodes.setdefault(stack.node, []).append(stack)
        shown = [
            f"{f'node {node}: ' if node else ''}{_names(stacks)}" for node, stacks in list(nodes.items())[:SHOWN_NODES]
        ]
        more = [f"{len(nodes) - SHOWN_NODES} more nodes"] if len(nodes) > SHOWN_NODES else []
        return f" ({'; '.join(shown + more)})"


def _count(stacks: Sequence[Stack]) -> str:
    what = "rank" if all(stack.rank is not None for stack in stacks) else "process"
    return f"{len(stacks)} {what}" + ("" if len(stacks) == 1 else "es" if what == "process" else "s")


def _names(stacks: Sequence[Stack]) -> str:
    ranks = [stack.rank for stack in stacks if stack.rank is not None]
    if len(ranks) == len(stacks):
        return str(RangeSet(",".join(map(str, sorted(ranks)))))
    pids = [str(stack.pid) for stack in stacks if stack.pid is not None]
    return f"pid {', '.join(pids[:8])}{', ...' if len(pids) > 8 else ''}" if pids else "?"


def group_stacks(stacks: Iterable[Stack]) -> list[StackGroup]:
    """By place, the smallest group first: it is what everybody else waits for. Those that nobody could look at come
    last: nothing follows from them."""
    places: dict[str, list[Stack]] = {}
    for stack in stacks:
        places.setdefault(stack.place, []).append(stack)
    groups = [
        StackGroup(place=place, stacks=tuple(sorted(members, key=lambda stack: (stack.rank or 0, stack.node))))
        for place, members in places.items()
    ]
    return sorted(groups, key=lambda group: (not group.is_known, len(group.stacks), group.place))


def render_stacks(stacks: Sequence[Stack], *, ranks: int | None = None) -> list[str]:
    """One line for each group, and how many ranks did not answer."""
    lines = [str(group) for group in group_stacks(stacks)]
    lines += [PTRACE] if any(stack.refused for stack in stacks) else []
    missing = (ranks or 0) - len(stacks)
    return [*lines, f"{missing} of {ranks} ranks did not answer"] if missing > 0 else lines


# --- reading


@dataclass(slots=True)
class _Thread:
    is_main: bool
    frames: list[Frame] = field(default_factory=list)


@dataclass(slots=True)
class _Process:
    node: str
    rank: int | None
    pid: int | None = None
    threads: list[_Thread] = field(default_factory=list)
    is_looked_at: bool = False
    """By py-spy, not told by itself."""
    refused: bool = False

    def stack(self) -> Stack:
        frames = tuple(self._main())
        return Stack(
            node=self.node, rank=self.rank, pid=self.pid, frames=frames, refused=self.refused and not frames
        )  # fmt: skip

    def _main(self) -> list[Frame]:
        """py-spy names it; faulthandler prints it last, and the thread that dumps is not it."""
        threads = [thread for thread in self.threads if thread.frames]
        named = [thread for thread in threads if thread.is_main]
        others = [thread for thread in threads if not any(frame.function == "_dump" for frame in thread.frames)]
        main = named or others[-1:]
        return main[0].frames if main else []


def parse(text: bytes, known: Speaker = NOBODY) -> list[Stack]:
    """Every process's stack in what py-spy or faulthandler printed, also in the middle of a log with prefixes. What is
    dumped again counts the last time. Never raises."""
    reader = _StackReader(known)
    for line in text.split(b"\n"):
        speaker, data = split(line, known)
        reader.take(speaker, data.decode(errors="replace").rstrip())
    return [process.stack() for process in reader.processes.values()]


@dataclass(slots=True)
class _StackReader:
    known: Speaker
    processes: dict[tuple[str, int | None, int | None], _Process] = field(default_factory=dict)
    current: dict[Speaker, _Process] = field(default_factory=dict)

    def take(self, speaker: Speaker, text: str) -> None:
        if header := _HEADER.match(text):
            self._begin(speaker, _Process(header[1], int(header[2]), int(header[3]), is_looked_at=True))
        elif process := _PROCESS.match(text):
            self._process(speaker, int(process[1]))
        elif _ANEW.match(text):
            self._begin(speaker, _Process(speaker.node, speaker.rank))
        elif thread := _THREAD.match(text):
            self._thread(speaker, thread[1], is_main='"MainThread"' in text)
        elif mine := self.current.get(speaker):
            self._within(mine, text)

    def _within(self, mine: _Process, text: str) -> None:
        if mine.threads and (frame := _frame(text)):
            mine.threads[-1].frames.append(frame)
        elif mine.is_looked_at and _FORBIDDEN.search(text):
            mine.refused = True

    def _begin(self, speaker: Speaker, process: _Process) -> None:
        self.current[speaker] = process
        self.processes[process.node, process.rank, process.pid] = process

    def _process(self, speaker: Speaker, pid: int) -> None:
        mine = self.current.get(speaker)
        if mine is None or mine.pid != pid:
            self._begin(speaker, _Process(speaker.node, speaker.rank, pid))

    def _thread(self, speaker: Speaker, number: str, *, is_main: bool) -> None:
        mine = self.current.get(speaker)
        # py-spy gives the main thread of a process the process's number.
        if mine is None or (is_main and any(thread.is_main for thread in mine.threads)):
            mine = _Process(speaker.node, speaker.rank, int(number) if is_main and number.isdecimal() else None)
            self._begin(speaker, mine)
        mine.threads.append(_Thread(is_main))


def _frame(text: str) -> Frame | None:
    if match := _FAULTHANDLER.match(text):
        return Frame(match[3], match[1], int(match[2]))
    if match := _PYSPY.match(text):
        return Frame(match[1], match[2], int(match[3] or 0))
    return None
