"""The logs of one train: main_log with pulse.log, or the logs of the ranks of one attempt."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.state.files import read_range
from opsctl.state.journal import Journal, replay
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.logs.growing_file import GrowingFile, at_tail
from opsctl.telemetry.logs.log_lines import RANKS_LOG, merge, time_of

POLL_S = 0.5
AROUND_BYTES, LINES_AROUND = 64 << 10, 12
DISCOVERY_S = 5.0
"""How often to search for a new attempt and for new ranks."""


@dataclass(slots=True)
class TrainLog:
    """main_log of all ranks, merged with pulse.log in order of time as far as known.

    As of every log to show and follow, lines are bytes without line ends; `tail` comes first, and is read to its end.
    """

    run: RunDir
    main: GrowingFile = field(init=False)
    pulse: GrowingFile = field(init=False)
    poll_seconds: float = POLL_S

    @property
    def description(self) -> str:
        return f"the log of {self.run.name}"

    def tail(self, lines: int | None) -> Iterable[bytes]:
        self.main, self.pulse = _begin(self.run.main_log, lines), _begin(self.run.logs / "pulse.log", lines)
        if lines is None:
            return merge(self.main.read(), self.pulse.read())
        main, pulse = list(self.main.read()), list(self.pulse.read())
        return list(merge(main, _select_recent(main, pulse)))[-lines:] if lines else []

    def read(self) -> Iterator[bytes]:
        yield from self.main.read()
        yield from self.pulse.read()

    def rest(self) -> list[bytes]:
        return self.main.rest() + self.pulse.rest()


def read_around(log: Path, at: int) -> list[bytes]:
    """Return the lines of a log around the offset `at`. Raises RunDirError, OSError."""
    start = max(0, at - AROUND_BYTES)
    data = read_range(log, start, at - start + AROUND_BYTES)[0]
    above, below = data[: at - start].split(b"\n"), data[at - start :].split(b"\n")
    return [*above[-LINES_AROUND:-1], *below[:LINES_AROUND]]


def _begin(path: Path, lines: int | None, prefix: bytes = b"") -> GrowingFile:
    return GrowingFile(path) if lines is None else at_tail(path, lines, prefix)


def _select_recent(main: list[bytes], pulse: list[bytes]) -> list[bytes]:
    """Return the pulse lines since the first time in these main lines, and the pulse line before them.

    Otherwise old pulse lines would displace the newest main lines, which may have no time.
    """
    since = next(filter(None, map(time_of, main)), None)
    later = [line for line in pulse if since and (time_of(line) or b"") >= since]
    return pulse[: len(pulse) - len(later)][-1:] + later


@dataclass(frozen=True, slots=True)
class _RankLog:
    """The log of one rank, or of all ranks of a node, with what is shown of it."""

    file: GrowingFile
    is_of_node: bool
    mark: bytes
    """The prefix of a line of the rank to show; empty for all ranks of a node."""

    def show(self, lines: Iterable[bytes], *, with_prefix: bool) -> Iterator[bytes]:
        for line in lines:
            if not self.is_of_node:
                yield self.mark + line if with_prefix else line
            elif line.startswith(self.mark):
                yield line if with_prefix else line[len(self.mark) :]


@dataclass(slots=True, kw_only=True)
class RankLogs:
    """The logs of the ranks of the newest attempt, or of the newest attempt of one task.

    A later attempt replaces the current one.
    """

    run: RunDir
    journal: Journal
    task: int | None = None
    rank: int | None = None
    node: str | None = None
    with_prefix: bool = True
    """Whether to begin a line with its node and rank, as main_log does."""
    attempt: str | None = None
    """The current attempt; None before the first."""
    poll_seconds: float = POLL_S
    _logs: dict[Path, _RankLog] = field(default_factory=dict)
    _next_discovery_s: float = 0

    def tail(self, lines: int | None) -> Iterator[bytes]:
        """Yield the last lines of every log, one log after the other."""
        self.attempt = self._newest_attempt()
        self._logs = self._find_logs(lines)
        yield from self._read_all()

    def read(self) -> Iterator[bytes]:
        yield from self._read_all()
        if self.journal.clock.monotonic() >= self._next_discovery_s:
            yield from self._discover()

    def rest(self) -> Iterator[bytes]:
        for log in self._logs.values():
            yield from log.show(log.file.rest(), with_prefix=self.with_prefix)

    @property
    def description(self) -> str:
        filters = ((self.task, "task"), (self.rank, "rank"), (self.node, "node"))
        names = [f"{name} {value}" for value, name in filters if value is not None]
        names.append(f"attempt {self.attempt}" if self.attempt else "no attempt")
        return f"{', '.join(names)} of {self.run.name}"

    def _discover(self) -> Iterator[bytes]:
        """Find a new attempt and new ranks; yield the rest of the attempt before and the lines of new ranks."""
        self._next_discovery_s = self.journal.clock.monotonic() + DISCOVERY_S
        newest = self._newest_attempt()
        if newest != self.attempt:
            yield from self.rest()
            self._close()
        self.attempt = newest
        if new := {path: log for path, log in self._find_logs(None).items() if path not in self._logs}:
            self._logs |= new
            yield from self._read_all()

    def _close(self) -> None:
        for log in self._logs.values():
            log.file.close()
        self._logs = {}

    def _newest_attempt(self) -> str | None:
        attempts = replay(self.journal.events()).attempts
        names = (name for name in reversed(attempts) if self.task is None or self.run.attempt(name).task == self.task)
        return next(names, None)

    def _find_logs(self, lines: int | None) -> dict[Path, _RankLog]:
        """Return the selected logs, from so many lines before their ends, in the order of their ranks."""
        place, logs = self.run.attempt_logs(self.attempt or "none"), dict[Path, _RankLog]()
        names = [name for path in place.glob("*.log") if (name := RANKS_LOG.fullmatch(path.name))]
        for name in sorted(names, key=lambda name: int(name["first"])):
            first, last, is_of_node = int(name["first"]), int(name["last"] or name["first"]), bool(name["last"])
            if self.node in {None, name["node"]} and (self.rank is None or first <= self.rank <= last):
                rank = self.rank if is_of_node else first
                mark = b"" if rank is None else f"[{name['node']}:{rank}]: ".encode(errors="surrogateescape")
                file = _begin(place / name[0], lines, mark if is_of_node else b"")
                logs[place / name[0]] = _RankLog(file, is_of_node, mark)
        return logs

    def _read_all(self) -> Iterator[bytes]:
        for log in self._logs.values():
            yield from log.show(log.file.read(), with_prefix=self.with_prefix)


def open_logs(
    run: RunDir, journal: Journal, *, task: int | None, rank: int | None, node: str | None, with_prefix: bool
) -> TrainLog | RankLogs:
    """Return the log of a train; with `task`, `rank` or `node`, the logs of these ranks."""
    if (task, rank, node) == (None, None, None):
        return TrainLog(run)
    return RankLogs(run=run, journal=journal, task=task, rank=rank, node=node, with_prefix=with_prefix)
