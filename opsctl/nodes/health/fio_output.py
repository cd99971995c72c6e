"""Parse the output of fio. Pure. Raises nothing for any input."""

from __future__ import annotations

import json
from typing import Any

from opsctl.nodes.health.node_state import Fio

BYTES_PER_MIB = float(1 << 20)


def parse_fio(text: str) -> Fio | None:
    """Parse `fio --output-format=json`. Return None for incomplete output. Warnings may precede the JSON."""
    start = text.find("{")
    try:
        output: Any = json.loads(text[start:]) if start >= 0 else None
        jobs = {job["jobname"]: job for job in output["jobs"]}
        write, read, random = jobs["write"]["write"], jobs["read"]["read"], jobs["random"]["read"]
        return Fio(
            write_mib_s=_check_positive(write["bw_bytes"]) / BYTES_PER_MIB,
            read_mib_s=_check_positive(read["bw_bytes"]) / BYTES_PER_MIB,
            read_iops=_check_positive(random["iops"]),
            p99_ms=_read_p99_ms(random),
            is_direct=str(output["global options"]["direct"]) == "1",
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _check_positive(value: Any) -> float:
    """Return a positive number. Raises ValueError for other values: zero means that fio measured nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
        raise ValueError(value)
    return float(value)


def _read_p99_ms(job: dict[str, Any]) -> float | None:
    try:
        return _check_positive(job["clat_ns"]["percentile"]["99.000000"]) / 1e6
    except (ValueError, TypeError, KeyError):
        return None
