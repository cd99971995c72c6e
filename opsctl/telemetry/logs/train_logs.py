"""The logs of one train: main_log with pulse.log, or what each rank of an attempt said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from opsctl.state.journal import Journal, replay
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.logs.growing_file import GrowingFile, at_tail
from opsctl.telemetry.logs.log_lines import merge, time_of

POLL_SECONDS = 0.5
LOOK_SECONDS = 5.0
"""How often to look for a new attempt and for new ranks of it."""


class LogSource(Protocol):
    """What can be shown and followed. Lines are bytes without their ends."""

    @property
    def what(self) -> str:
        """Its name in messages."""

    @property
    def poll_seconds(self) -> float:
        """How long to wait between two reads."""

    def tail(self, lines: int | None) -> Iterable[bytes]:
        """The last lines, or all with None. To be called first, and read to its end."""

    def read(self) -> Iterable[bytes]:
        """The complete lines that are new since then. To be read to its end."""

    def rest(self) -> Iterable[bytes]:
        """Last lines that have no end yet. They are given up: what completes them comes as lines of their own."""


@dataclass(slots=True)
class TrainLog:
    """main_log, which all ranks write to, and pulse.log in order of time as far as that can be known."""

    run: RunDir
    main: GrowingFile = field(init=False)
    pulse: GrowingFile = field(init=False)
    poll_seconds: float = POLL_SECONDS

    @property
    def what(self) -> str:
        return f"the log of {self.run.name}"

    def tail(self, lines: int | None) -> Iterable[bytes]:
        self.main, self.pulse = _begin(self.run.main_log, lines), _begin(self.run.logs / "pulse.log", lines)
        if lines is None:
            return merge(self.main.read(), self.pulse.read())
        main, pulse = list(self.main.read()), list(self.pulse.read())
        return list(merge(main, _fitting(main, pulse)))[-lines:] if lines else []

    def read(self) -> Iterator[bytes]:
        yield from self.main.read()
        yield from self.pulse.read()

    def rest(self) -> list[bytes]:
        return self.main.rest() + self.pulse.rest()


def _begin(path: Path, lines: int | None) -> GrowingFile:
    return GrowingFile(path) if lines is None else at_tail(path, lines)


def _fitting(main: list[bytes], pulse: list[bytes]) -> list[bytes]:
    """The pulse lines since the first time that these lines of the main log tell, and the one before them.

    Without that, where main lines bear no time, old pulse lines would take the place of the main log's newest ones.
    """
    since = next(filter(None, map(time_of, main)), None)
    later = [line for line in pulse if since and (time_of(line) or b"") >= since]
    return pulse[: len(pulse) - len(later)][-1:] + later


@dataclass(slots=True, kw_only=True)
class RankLogs:
    """What the ranks of one attempt said: of the newest attempt, or of the newest attempt of one task. Later attempts
    take over."""

    run: RunDir
    journal: Journal
    task: int | None = None
    rank: int | None = None
    node: str | None = None
    with_prefix: bool = True
    """Whether to say which rank said it, as main_log does."""
    attempt: str | None = None
    """The attempt that is read now, once there is one."""
    poll_seconds: float = POLL_SECONDS
    _files: dict[Path, GrowingFile] = field(default_factory=dict)
    _next_look: float = 0

    def tail(self, lines: int | None) -> Iterator[bytes]:
        """The last lines of each rank, one rank after the other."""
        self.attempt = self._newest_attempt()
        self._files = {path: _begin(path, lines) for path in self._paths()}
        yield from self._read_all()

    def read(self) -> Iterator[bytes]:
        yield from self._read_all()
        if self.journal.clock.monotonic() >= self._next_look:
            yield from self._look()

    def rest(self) -> Iterator[bytes]:
        for path, file in self._files.items():
            yield from (self._prefix(path) + line for line in file.rest())

    @property
    def what(self) -> str:
        asked = ((self.task, "task"), (self.rank, "rank"), (self.node, "node"))
        names = [f"{name} {value}" for value, name in asked if value is not None]
        return ", ".join([*names, f"attempt {self.attempt}" if self.attempt else "no attempt"]) + f" of {self.run.name}"

    def _look(self) -> Iterator[bytes]:
        """Find the attempt and its ranks: what is left of the attempt before, and what new ranks said."""
        self._next_look = self.journal.clock.monotonic() + LOOK_SECONDS
        newest = self._newest_attempt()
        if newest != self.attempt:
            yield from self.rest()
            self._close()
        self.attempt = newest
        if new := [path for path in self._paths() if path not in self._files]:
            self._files |= {path: GrowingFile(path) for path in new}
            yield from self._read_all()

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    def _newest_attempt(self) -> str | None:
        started = replay(self.journal.events()).started
        mine = (name for name in reversed(started) if self.task is None or self.run.attempt(name).task == self.task)
        return next(mine, None)

    def _paths(self) -> list[Path]:
        if self.attempt is None:
            return []
        paths = [path for path in self.run.attempt_logs(self.attempt).glob("*.log") if self._is_asked_for(path)]
        return sorted(paths, key=lambda path: int(_place(path)[1]))

    def _is_asked_for(self, path: Path) -> bool:
        node, rank = _place(path)
        if not rank.isdecimal():
            return False
        return (self.rank is None or int(rank) == self.rank) and (self.node is None or node == self.node)

    def _read_all(self) -> Iterator[bytes]:
        for path, file in self._files.items():
            prefix = self._prefix(path)
            for line in file.read():
                yield prefix + line

    def _prefix(self, path: Path) -> bytes:
        node, rank = _place(path)
        return f"[{node}:{rank}]: ".encode(errors="surrogateescape") if self.with_prefix else b""


def _place(path: Path) -> tuple[str, str]:
    """`<node>-<rank>.log`; a node's name may hold dashes."""
    node, _, rank = path.stem.rpartition("-")
    return node, rank
