"""Watchdogs by configuration: a pattern in a log, a Nagios plugin, a number with limits."""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import AwareDatetime

from opsctl.base.errors import OpsctlError
from opsctl.base.findings import Finding, Severity
from opsctl.base.ports import TimedOut
from opsctl.base.statements import NO_REMEDY, Remedy, Statement, quote, state
from opsctl.settings.bounded_pattern import compile_bounded
from opsctl.settings.watch import CheckTable
from opsctl.state.files import MAX_RECORD_BYTES, read_text
from opsctl.telemetry.logs.growing_file import GrowingFile, Position
from opsctl.watchdogs.context import WatchContext, WatchedTrain

PARALLEL = 8
EXIT_SEVERITIES = {0: Severity.OK, 1: Severity.WARNING, 2: Severity.CRITICAL, 3: Severity.UNKNOWN}
"""Severity by exit code, as the Nagios plugin convention has it; other codes are unknown."""
MAX_LOG_BYTES = 8 << 20
"""Of a log that grew more since the last cycle, only the end is searched."""
MAX_MATCHES = 3
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCheckResult:
    check: CheckTable
    code: int | None = None
    """Exit code of the command."""
    lines: tuple[str, ...] = ()
    """Output of the command, text of the file, or the newest bad lines of the log."""
    matched_at: datetime | None = None
    """Time of the last bad line."""
    problem: str = ""
    """Why there is no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMatches:
    """How far a log has been searched, and its newest bad lines."""

    inode: int
    offset: int
    lines: tuple[str, ...] = ()
    matched_at: AwareDatetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksMemory:
    logs: Mapping[str, LogMatches] = field(default_factory=dict)
    """By check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCheckResults:
    key: str
    """Start of the keys."""
    train: str
    results: tuple[OwnCheckResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the checks of a train or of the site run."""

    context: WatchContext
    watchdog: str
    target: str
    directory: Path
    names: dict[str, str]


@dataclass(frozen=True, slots=True)
class OwnChecks:
    name: str
    of: Literal["train", "site"]
    needs_slurm: ClassVar[bool] = False

    def probe(self, context: WatchContext, target: WatchedTrain | None) -> OwnCheckResults:
        train, directory, checks = "", context.site.root_path, context.site.watch.checks
        if target is not None:
            # The commands of another user's train.toml must not run as this user.
            checks = target.config.watch.checks if target.run.is_ours else ()
            train, directory = target.name, target.run.path
        names = {"train": train, "run": str(directory)}
        place = _Place(context=context, watchdog=self.name, target=train or "site", directory=directory, names=names)
        return OwnCheckResults(key=f"{self.name}/{place.target}", train=train, results=_run_all(place, checks))

    def judge(self, observation: OwnCheckResults, now: datetime) -> list[Finding]:
        """Return one finding for each check, or one that nothing is configured."""
        findings = [_judge(observation, result, now) for result in observation.results]
        nothing = Finding(key=observation.key, severity=Severity.OK, says=state("check.none"), train=observation.train)
        return findings or [nothing]


def _run_all(place: _Place, checks: Sequence[CheckTable]) -> tuple[OwnCheckResult, ...]:
    if not checks:
        return ()
    memory = place.context.memory
    before = memory.recall(ChecksMemory, place.watchdog, place.target).logs
    with ThreadPoolExecutor(min(PARALLEL, len(checks))) as pool:
        pairs = list(pool.map(lambda check: _run(place, check, before.get(check.name)), checks))
    logs = {result.check.name: matches for result, matches in pairs if matches}
    memory.remember(place.watchdog, place.target, ChecksMemory(logs=logs))
    return tuple(result for result, _ in pairs)


def _run(place: _Place, check: CheckTable, before: LogMatches | None) -> tuple[OwnCheckResult, LogMatches | None]:
    """Return the result of one check, and what to remember of a log."""
    try:
        if check.kind == "log":
            return _search_log(place, check, before)
        if check.command:
            argv = [_fill(word, place.names) for word in check.command]
            done = place.context.runner.run(argv, timeout=check.timeout_seconds)
            return OwnCheckResult(check=check, code=done.code, lines=_lines(done.out or done.err)), None
        text = read_text(place.directory / check.file, MAX_RECORD_BYTES)
        return OwnCheckResult(check=check, code=0, lines=_lines(text)), None
    except (OpsctlError, TimedOut, OSError, ValueError, LookupError) as error:
        return OwnCheckResult(check=check, problem=str(error)), before


def _fill(word: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line for line in text.splitlines() if line.strip())


def _search_log(place: _Place, check: CheckTable, before: LogMatches | None) -> tuple[OwnCheckResult, LogMatches]:
    path, pattern = place.directory / check.file, compile_bounded(check.pattern)
    status = path.stat()
    position = Position(inode=status.st_ino, offset=status.st_size)
    if before:  # the first cycle begins at the end
        position = Position(inode=before.inode, offset=before.offset)
        if position.inode == status.st_ino and status.st_size - position.offset > MAX_LOG_BYTES:
            position = Position(inode=status.st_ino, offset=status.st_size - MAX_LOG_BYTES)
    file = GrowingFile(path, position)
    try:
        texts = (line.decode(errors="replace") for line in file.read())
        matches = [text for text in texts if pattern.search(text) is not None]
        position = file.position
    finally:
        file.close()
    lines = tuple([*(before.lines if before else ()), *matches][-MAX_MATCHES:])
    earlier = before.matched_at if before else None
    found = LogMatches(
        inode=position.inode,
        offset=position.offset,
        lines=lines,
        matched_at=place.context.now if matches else earlier,
    )
    return OwnCheckResult(check=check, lines=lines, matched_at=found.matched_at), found


def _judge(observation: OwnCheckResults, result: OwnCheckResult, now: datetime) -> Finding:
    severity, says = _judge_result(result, now)
    return Finding(
        key=f"{observation.key}/{result.check.name}",
        severity=severity,
        says=state("check.result", says, train=observation.train, name=result.check.name),
        train=observation.train,
        evidence=result.lines if result.check.kind == "log" and severity is not Severity.OK else result.lines[1:],
        fix=Remedy(advice=quote(result.check.remedy)) if severity is not Severity.OK else NO_REMEDY,
    )


def _judge_result(result: OwnCheckResult, now: datetime) -> tuple[Severity, Statement]:
    check = result.check
    if result.problem:
        return Severity.UNKNOWN, quote(result.problem)
    if check.kind == "log":
        is_bad = result.matched_at is not None and now - result.matched_at < timedelta(minutes=check.minutes)
        return (
            (Severity(check.severity), quote(result.lines[-1].strip()))
            if is_bad
            else (Severity.OK, state("check.no_bad_line"))
        )
    first = result.lines[0].partition("|")[0].strip() if result.lines else ""
    if check.kind == "command":
        severity = EXIT_SEVERITIES.get(result.code if result.code is not None else -1, Severity.UNKNOWN)
        return severity, quote(first) if first else state("check.no_output", code=result.code)
    match = _NUMBER.search(first)
    if result.code:
        return Severity.UNKNOWN, state("check.exit_code", code=result.code)
    if match is None:
        return Severity.UNKNOWN, state("check.no_number", text=first or "no output")
    return _judge_number(check, float(match[0]))


def _judge_number(check: CheckTable, number: float) -> tuple[Severity, Statement]:
    for severity, above, below in (
        (Severity.CRITICAL, check.critical_above, check.critical_below),
        (Severity.WARNING, check.warning_above, check.warning_below),
    ):
        if above is not None and number > above:
            return severity, state("check.number", number=number, unit=check.unit, above=above)
        if below is not None and number < below:
            return severity, state("check.number", number=number, unit=check.unit, below=below)
    return Severity.OK, state("check.number", number=number, unit=check.unit)
