"""From fio's words to figures. Pure; whatever it is fed, nothing is raised."""

from __future__ import annotations

import json
from typing import Any

from opsctl.nodes.health.node_state import Fio

MIB = float(1 << 20)


def parse_fio(text: str) -> Fio | None:
    """What `fio --output-format=json` measured; None if it makes no whole. It may warn before it begins."""
    start = text.find("{")
    try:
        given: Any = json.loads(text[start:]) if start >= 0 else None
        jobs = {job["jobname"]: job for job in given["jobs"]}
        write, read, random = jobs["write"]["write"], jobs["read"]["read"], jobs["random"]["read"]
        return Fio(
            write_mib_s=_figure(write["bw_bytes"]) / MIB, read_mib_s=_figure(read["bw_bytes"]) / MIB,
            read_iops=_figure(random["iops"]), p99_ms=_p99(random),
            is_direct=str(given["global options"]["direct"]) == "1",
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _figure(given: Any) -> float:
    """Raises ValueError for what is no figure, and for zero: then it did not measure."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 1e18:
        raise ValueError(given)
    return float(given)


def _p99(job: dict[str, Any]) -> float | None:
    try:
        return _figure(job["clat_ns"]["percentile"]["99.000000"]) / 1e6
    except (ValueError, TypeError, KeyError):
        return None
