"""Diagnose an attempt from its logs and from the reported exit reason."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import median

from opsctl.diagnosis.causes import OF_TRAINER, CauseKind, Confidence, Weight, causes, read_table
from opsctl.diagnosis.excerpt import find_time
from opsctl.diagnosis.exit_reasons import ExitReason
from opsctl.diagnosis.flight_recorder import explain_dumps, read_dumps
from opsctl.diagnosis.line_origin import origin_of_file, ranks_of_file, split
from opsctl.diagnosis.root_cause import NOTHING, Diagnosis, find_root_cause
from opsctl.diagnosis.scan_logs import LogEvent, Scan, find_survived, scan
from opsctl.state.files import is_regular, read_range
from opsctl.state.packed import find_original, unpacked
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.last_lines import read_last_lines, read_part
from opsctl.telemetry.progress.log_reader import STAMP, STAMP_SEARCH_BYTES, parse_stamp
from opsctl.telemetry.progress.train_settings import read_step_pattern

RANK_LOG_TAIL_BYTES = 4 << 20
"""Bytes read from the end of a log for each of its ranks. A rank that ended writes nothing afterwards."""
SUSPICIOUS_TAIL_BYTES = 256 << 10
"""Bytes at the end of an attempt's log in which suspicious lines are searched."""
MAX_SUSPICIOUS_LINES = 5
MAX_QUOTED_CHARS = 300
SURVIVABLE = OF_TRAINER | {CauseKind.MEMORY, CauseKind.STORAGE}
"""Classes of failures that a program may report and survive."""
CLOCK_BYTES = 64 << 10
"""Bytes at the start of a log from which clock offsets are estimated."""
_VARIES = re.compile(rb"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttemptLogs:
    """The range of main_log that belongs to an attempt, and facts from outside the logs."""

    attempt: str
    begin: int = 0
    """Offset in main_log where the attempt begins, in bytes."""
    end: int | None = None
    """Offset in main_log where the next attempt begins, in bytes."""
    earlier: tuple[tuple[int, int], ...] = ()
    """Where earlier attempts begin and end in main_log, in bytes."""
    exit_reason: ExitReason | None = None
    ranks: int | None = None
    """Number of ranks."""


def diagnose_attempt(run: RunDir, attempt_logs: FinishedAttemptLogs, *, before: Diagnosis | None = None) -> Diagnosis:
    """Return why an attempt ended, from main_log; if main_log explains nothing, from the logs of the single ranks.

    Raises RunDirError for unreadable logs.
    """
    if attempt_logs.exit_reason and attempt_logs.exit_reason.is_final:
        return replace(find_root_cause([], end=attempt_logs.exit_reason), attempt=attempt_logs.attempt)
    pattern = read_step_pattern(run)
    survived = find_survived(run.main_log, attempt_logs.earlier, pattern)
    main = scan(run.main_log, begin=attempt_logs.begin, end=attempt_logs.end, pattern=pattern, survived=survived)
    events = main.events
    if not any(event.cause.weight is Weight.CAUSE for event in events):
        rank_events = scan_ranks(sorted(run.attempt_logs(attempt_logs.attempt).glob("*.log")))
        if not events or _max_weight(rank_events) > _max_weight(events):
            events = rank_events
    diagnosis = find_root_cause(
        events, end=attempt_logs.exit_reason, iteration=main.iteration, ranks=attempt_logs.ranks, before=before
    )
    diagnosis = _add_suspicious_lines(diagnosis, [run.main_log], begin=attempt_logs.begin, end=attempt_logs.end)
    dumps = unpacked(run.attempt(attempt_logs.attempt).path / "flight").parent
    recorded = explain_dumps(read_dumps(dumps))
    log = find_original(diagnosis.log)
    return replace(diagnosis, attempt=attempt_logs.attempt, log=log, also=(*recorded, *diagnosis.also))


def diagnose_logs(paths: Sequence[Path]) -> Diagnosis:
    """Return why an attempt ended from logs alone: one log of all ranks, or one log for each rank or node."""
    scans = {path: scan(path, known=origin_of_file(path.name)) for path in paths}
    iterations = [log_scan.iteration for log_scan in scans.values() if log_scan.iteration is not None]
    diagnosis = find_root_cause(merge_in_order(scans), iteration=max(iterations, default=None))
    return _add_suspicious_lines(diagnosis, paths)


def _add_suspicious_lines(
    diagnosis: Diagnosis, paths: Sequence[Path], *, begin: int = 0, end: int | None = None
) -> Diagnosis:
    """Quote the most suspicious lines if no cause is known, and report a training that logged its end.

    A training that logged its end behind a line has survived the line.
    """
    if not paths:
        return diagnosis
    last = read_last_lines(paths[-1], begin, end)
    if last.finished and not last.failed and diagnosis.kind in SURVIVABLE:
        return replace(diagnosis, sure=Confidence.POSSIBLE)
    if not _is_unexplained(diagnosis):
        return diagnosis
    is_silent = diagnosis.cause == NOTHING
    if is_silent and (finished := last.finished):
        return replace(diagnosis, kind=CauseKind.NONE, says="the training is over", evidence=(finished,), advice="")
    lines = _find_suspicious_lines(paths[-1], begin, end, falls_back=is_silent)
    evidence = (*diagnosis.evidence, *(line for line in lines if line not in diagnosis.evidence))
    return replace(diagnosis, evidence=evidence, log=diagnosis.log or str(paths[-1]))


def _find_suspicious_lines(log: Path, begin: int, end: int | None, *, falls_back: bool = True) -> tuple[str, ...]:
    """Return the lines with the highest scores, in their order; without any, the last lines if `falls_back`.

    `begin` and `end` are the offsets of the attempt in the log. Raises nothing.
    """
    data = read_part(log, begin, end, SUSPICIOUS_TAIL_BYTES)
    lines = [line for line in map(_clean, re.split(rb"[\r\n]+", data)) if line]
    scores = {
        line: score
        for line in dict.fromkeys(lines)
        if (score := sum(points for pattern, points in _scores() if pattern.search(line))) > 0
    }
    if not scores:
        return tuple(lines[-MAX_SUSPICIOUS_LINES:]) if falls_back else ()
    ranked = sorted(enumerate(scores), key=lambda entry: (scores[entry[1]], entry[0]))
    return tuple(line for _, line in sorted(ranked[-MAX_SUSPICIOUS_LINES:]))


def _clean(line: bytes) -> str:
    return split(line[: MAX_QUOTED_CHARS * 4])[1].decode(errors="replace").strip()[:MAX_QUOTED_CHARS]


def _is_unexplained(diagnosis: Diagnosis) -> bool:
    """Return whether the log names no cause, or only that a rank ended."""
    weak = {cause.name for cause in causes() if cause.kind is CauseKind.UNKNOWN and cause.weight < Weight.ERROR}
    return diagnosis.cause == NOTHING or diagnosis.cause in weak


def scan_ranks(paths: Sequence[Path]) -> list[LogEvent]:
    """Return the events of the logs of single ranks, in order of time."""
    scans = {}
    for path in filter(is_regular, paths):
        size = path.lstat().st_size
        tail_bytes = RANK_LOG_TAIL_BYTES * max(1, len(ranks_of_file(path.name)))
        scans[path] = scan(path, begin=max(0, size - tail_bytes), known=origin_of_file(path.name))
    return merge_in_order(scans)


def merge_in_order(scans: Mapping[Path, Scan]) -> list[LogEvent]:
    """Merge the events of several ordered logs. Events without any time come last."""
    logs = [log_scan.events for log_scan in scans.values() if log_scan.events]
    if len(logs) < 2:
        return list(chain.from_iterable(logs))
    skews = estimate_skews(list(scans))
    keyed = []
    for log in logs:
        latest = 0.0
        for event in log:
            seconds = _parse_seconds(find_time(event).encode())
            # The order within a log overrules its times.
            latest = max(latest, (seconds or latest) - skews.get(_find_clock(event.path), 0.0))
            keyed.append((latest or float("inf"), event.offset, event))
    return [event for _, _, event in sorted(keyed, key=lambda entry: entry[:2])]


def estimate_skews(paths: Sequence[Path]) -> dict[str, float]:
    """Return by node how many seconds its clock is ahead of the median clock."""
    times_by_line: dict[bytes, dict[str, float]] = {}
    for path in paths:
        for shape, seconds in _read_first_times(path).items():
            times_by_line.setdefault(shape, {}).setdefault(_find_clock(path), seconds)
    offsets: dict[str, list[float]] = {}
    for times in times_by_line.values():
        if len(times) < 2:
            continue
        middle = median(times.values())
        for clock, seconds in times.items():
            offsets.setdefault(clock, []).append(seconds - middle)
    return {clock: median(seconds) for clock, seconds in offsets.items()}


def _find_clock(path: Path) -> str:
    """Return the node whose clock stamps a log."""
    return origin_of_file(path.name).node or path.name


def _read_first_times(path: Path) -> dict[bytes, float]:
    """Return the first time of each kind of line at the start of a log. Lines that differ in digits are one kind."""
    try:
        lines = read_range(path, 0, CLOCK_BYTES)[0].split(b"\n")
    except OSError:
        return {}
    first_times: dict[bytes, float] = {}
    for line in lines:
        seconds = _parse_seconds(line)
        if seconds is not None:
            first_times.setdefault(_VARIES.sub(b"#", line), seconds)
    return first_times


def _parse_seconds(line: bytes) -> float | None:
    match = STAMP.search(line, 0, STAMP_SEARCH_BYTES)
    seconds = parse_stamp(match[0]) if match else math.nan
    return None if math.isnan(seconds) else seconds


def _max_weight(events: Sequence[LogEvent]) -> Weight:
    return max((event.cause.weight for event in events), default=Weight.ECHO)


@cache
def _scores() -> list[tuple[re.Pattern[str], int]]:
    return [(re.compile(row["pattern"]), row["score"]) for row in read_table("line_levels")["suspicious"]]
