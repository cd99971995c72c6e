"""The order of what several logs tell, although the clocks of their nodes differ.

All ranks begin together and say many of the same lines at the same moment. By how much a node's clock is off is how
much earlier or later than the others it says them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from opsctl.diagnosis.excerpt import when
from opsctl.diagnosis.scan_logs import LogEvent
from opsctl.diagnosis.speakers import speaker_of_file
from opsctl.telemetry.logs.log_lines import time_of

HEAD = 64 << 10
_VARIES = re.compile(rb"\d+")
_FRACTION = re.compile(rb"\d\d:\d\d:\d\d[.,](\d{1,6})")


def merge_in_order(logs: Sequence[Sequence[LogEvent]], paths: Sequence[Path]) -> list[LogEvent]:
    """The events of several logs, each of which is in order. Those without any time stay behind those with one."""
    if len(logs) < 2:
        return [event for log in logs for event in log]
    off = estimate_skews(paths)
    keyed = []
    for log in logs:
        latest = 0.0
        for event in log:
            seconds = _seconds(when(event).encode())
            # A log's own order counts for more than its times.
            latest = max(latest, (seconds or latest) - off.get(_clock(event.path), 0.0))
            keyed.append((latest or float("inf"), event.offset, event))
    return [event for _, _, event in sorted(keyed, key=lambda each: each[:2])]


def estimate_skews(paths: Sequence[Path]) -> dict[str, float]:
    """By how many seconds each node's clock is ahead of the middle of all."""
    said: dict[bytes, dict[str, float]] = {}
    for path in paths:
        for shape, seconds in _firsts(path).items():
            said.setdefault(shape, {}).setdefault(_clock(path), seconds)
    gaps: dict[str, list[float]] = {}
    for times in said.values():
        if len(times) < 2:
            continue
        middle = median(times.values())
        for clock, seconds in times.items():
            gaps.setdefault(clock, []).append(seconds - middle)
    return {clock: median(floats) for clock, floats in gaps.items()}


def _clock(path: Path) -> str:
    """The node whose clock a log bears."""
    return speaker_of_file(path.name).node or path.name


def _firsts(path: Path) -> dict[bytes, float]:
    """When each kind of line was first said, in the beginning of a log."""
    try:
        with path.open("rb") as file:
            lines = file.read(HEAD).split(b"\n")
    except OSError:
        return {}
    floats: dict[bytes, float] = {}
    for line in lines:
        if (seconds := _seconds(line)) is not None:
            floats.setdefault(_VARIES.sub(b"#", line), seconds)
    return floats


def _seconds(line: bytes) -> float | None:
    text = time_of(line)
    if text is None:
        return None
    try:
        whole = datetime.fromisoformat(text.decode()).timestamp()
    except ValueError:
        return None
    fraction = _FRACTION.search(line)
    return whole + (float(b"0." + fraction[1]) if fraction else 0.0)
