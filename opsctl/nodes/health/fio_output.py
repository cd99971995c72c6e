"""Parse the output of fio. Pure. Raises nothing for any input."""

from __future__ import annotations

import json
from typing import Any

from opsctl.nodes.health.node_state import Fio

MIB = float(1 << 20)


def parse_fio(text: str) -> Fio | None:
    """Parse `fio --output-format=json`. Return None for incomplete output. Warnings may precede the JSON."""
    start = text.find("{")
    try:
        output: Any = json.loads(text[start:]) if start >= 0 else None
        jobs = {job["jobname"]: job for job in output["jobs"]}
        write, read, random = jobs["write"]["write"], jobs["read"]["read"], jobs["random"]["read"]
        return Fio(
            write_mib_s=_figure(write["bw_bytes"]) / MIB, read_mib_s=_figure(read["bw_bytes"]) / MIB,
            read_iops=_figure(random["iops"]), p99_ms=_p99(random),
            is_direct=str(output["global options"]["direct"]) == "1",
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _figure(value: Any) -> float:
    """Return a positive number. Raises ValueError for other values: zero means that fio measured nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
        raise ValueError(value)
    return float(value)


def _p99(job: dict[str, Any]) -> float | None:
    try:
        return _figure(job["clat_ns"]["percentile"]["99.000000"]) / 1e6
    except (ValueError, TypeError, KeyError):
        return None
