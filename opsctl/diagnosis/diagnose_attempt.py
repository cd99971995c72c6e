"""One attempt of a train: which logs it has, and what they and everybody else say of its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.diagnosis.causes import Weight
from opsctl.diagnosis.exit_reasons import ExitReason
from opsctl.diagnosis.merge_logs import merge_in_order
from opsctl.diagnosis.root_cause import Diagnosis, find_root_cause
from opsctl.diagnosis.scan_logs import LogEvent, Scan, scan
from opsctl.diagnosis.speakers import speaker_of_file
from opsctl.state.run_dir import RunDir

TAIL = 4 << 20
"""Of a single rank's log, so much is read: a rank that died says nothing after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttemptLogs:
    """What is known of an attempt from outside its logs."""

    attempt: str
    begin: int = 0
    """How long main_log was when it began."""
    end: int | None = None
    """How long it was when the next attempt began."""
    said: ExitReason | None = None
    ranks: int | None = None
    """How many it had."""


def diagnose_attempt(run: RunDir, lived: FinishedAttemptLogs, *, before: Diagnosis | None = None) -> Diagnosis:
    """Why an attempt ended: from main_log, which has the order of all ranks, and where that explains nothing, from the
    logs of the single ranks. Raises RunDirError for logs that may not be read."""
    if lived.said and lived.said.is_final:
        return replace(find_root_cause([], end=lived.said), attempt=lived.attempt)
    main = scan(run.main_log, begin=lived.begin, end=lived.end)
    events = main.events
    if not any(event.cause.weight is Weight.CAUSE for event in events):
        own = scan_ranks(sorted(run.attempt_logs(lived.attempt).glob("*.log")))
        events = own if _heaviest(own) > _heaviest(events) else events
    diagnosis = find_root_cause(events, end=lived.said, iteration=main.iteration, ranks=lived.ranks, before=before)
    return replace(diagnosis, attempt=lived.attempt)


def diagnose_logs(paths: Sequence[Path], *, ranks: int | None = None) -> Diagnosis:
    """Why it ended, from logs alone: one that all ranks write to, or one for each rank or node."""
    if len(paths) == 1:
        seen = scan(paths[0], known=speaker_of_file(paths[0].name))
        return find_root_cause(seen.events, iteration=seen.iteration, ranks=ranks)
    seen_each = {path: scan(path, known=speaker_of_file(path.name)) for path in paths}
    last = max((each.iteration for each in seen_each.values() if each.iteration is not None), default=None)
    return find_root_cause(_together(seen_each), iteration=last, ranks=ranks)


def scan_ranks(paths: Sequence[Path]) -> list[LogEvent]:
    """What the logs of single ranks tell, in order of time."""
    found = {}
    for path in paths:
        size = path.stat().st_size
        found[path] = scan(path, begin=max(0, size - TAIL), known=speaker_of_file(path.name))
    return _together(found)


def _together(scans: dict[Path, Scan]) -> list[LogEvent]:
    return merge_in_order([scan.events for scan in scans.values() if scan.events], list(scans))


def _heaviest(events: Sequence[LogEvent]) -> int:
    return max((event.cause.weight for event in events), default=-1)
