"""The rank that failed first, as torchrun's summary of a failed run names it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from opsctl.diagnosis.excerpt import read_following
from opsctl.diagnosis.scan_logs import LogEvent
from opsctl.diagnosis.speakers import Speaker

SUMMARY = "torchrun-summary"
"""The row of the catalogue for the title of the summary."""
MAX_SUMMARY_LINES = 8
"""Lines below the title of the summary: time, host, rank, exit code, error file, traceback."""
_FIELD = re.compile(r"\s*(?P<name>host|rank)\s*: (?P<value>[\w.-]{1,255})")


def find_first_failure(events: Sequence[LogEvent]) -> Speaker | None:
    """Return the host and rank that torchrun observed to fail first; None without a summary.

    The agent of each node writes a summary of its own ranks: several summaries name no first rank.
    """
    titles = [event for event in events if event.cause.name == SUMMARY]
    if len(titles) != 1:
        return None
    matches = filter(None, map(_FIELD.match, read_following(titles[0], MAX_SUMMARY_LINES)))
    fields = {match["name"]: match["value"] for match in matches}
    rank = fields.get("rank", "")
    return Speaker(node=fields.get("host", ""), rank=int(rank)) if rank.isdecimal() and len(rank) < 8 else None
