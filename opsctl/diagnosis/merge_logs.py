"""Merge the events of several logs in order of time, although the clocks of the nodes differ.

All ranks start together and write many equal lines at the same moment. The offset of a node's clock is therefore the
difference between its times and the other nodes' times of these lines.
"""

import math
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median

from opsctl.diagnosis.excerpt import find_time
from opsctl.diagnosis.scan_logs import LogEvent
from opsctl.diagnosis.speakers import speaker_of_file
from opsctl.state.files import read_range
from opsctl.telemetry.progress.log_reader import STAMP, STAMP_SEARCH_BYTES, parse_stamp

HEAD_BYTES = 64 << 10
"""Bytes at the start of a log from which clock offsets are estimated."""
_VARIES = re.compile(rb"\d+")


def merge_in_order(logs: Sequence[Sequence[LogEvent]], paths: Sequence[Path]) -> list[LogEvent]:
    """Merge the events of several ordered logs. Events without any time come last."""
    if len(logs) < 2:
        return list(chain.from_iterable(logs))
    skews = estimate_skews(paths)
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
    return speaker_of_file(path.name).node or path.name


def _read_first_times(path: Path) -> dict[bytes, float]:
    """Return the first time of each kind of line at the start of a log. Lines that differ in digits are one kind."""
    try:
        lines = read_range(path, 0, HEAD_BYTES)[0].split(b"\n")
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
