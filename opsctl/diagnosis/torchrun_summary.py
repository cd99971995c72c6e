"""The rank that failed first, as torchrun's summary of a failed run names it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opsctl.diagnosis.excerpt import read_following
from opsctl.diagnosis.scan_logs import LogEvent

SUMMARY = "Root Cause (first observed failure)"
MAX_SUMMARY_LINES = 8
"""Lines below the title of the summary: time, host, rank, exit code, error file, traceback."""
_RANK = re.compile(r"\s*rank\s*: (\d{1,7})\b")


def find_root_rank(events: Sequence[LogEvent]) -> int | None:
    """Return the rank that torchrun observed to fail first; None without a summary.

    The agent of each node writes a summary of its own ranks: several summaries name no first rank.
    """
    titles = [event for event in events if SUMMARY in event.text]
    if len(titles) != 1:
        return None
    ranks = (_RANK.match(line) for line in read_following(titles[0], MAX_SUMMARY_LINES))
    first = next(filter(None, ranks), None)
    return int(first[1]) if first else None
