"""From amd-smi's words to cards. Pure; whatever it is fed, nothing is raised, and what is not said is None.

It tells less than nvidia-smi: no recovery action, no reasons that hold clocks down; bad pages instead of rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from opsctl.nodes.health.node_state import Gpu, Smi
from opsctl.nodes.health.nvidia_smi import bus_of

PARTS = re.compile(r"^@(list|static|metric)$", re.MULTILINE)


def parse_amd(text: str) -> Smi | None:
    """`amd-smi list`, `static` and `metric`, each `--json` after a line of its own; None if they make no whole."""
    words = PARTS.split(text)
    tables = {name: _rows(said) for name, said in zip(words[1::2], words[2::2], strict=False)}
    listed, static, metric = (tables.get(name) for name in ("list", "static", "metric"))
    if not listed or static is None or metric is None:
        return None
    cards = tuple(_gpu(row, static.get(number, {}), metric.get(number, {})) for number, row in sorted(listed.items()))
    driver = next((_said(row, "driver", "version") for row in static.values()), None)
    return Smi(driver=driver or "", attached=None, gpus=cards)


def _rows(text: str) -> dict[int, Any] | None:
    """By number; a list, or in newer versions a list below `gpu_data`. It may warn before it begins."""
    match = re.search(r"^[\[{]", text, re.MULTILINE)
    try:
        given = json.loads(text[match.start() :]) if match else None
    except (ValueError, RecursionError):
        return None
    rows = given.get("gpu_data") if isinstance(given, dict) else given
    if not isinstance(rows, list):
        return None
    return {row["gpu"]: row for row in rows if isinstance(row, dict) and type(row.get("gpu")) is int}


def _gpu(listed: Any, static: Any, metric: Any) -> Gpu:
    exceeded = _said(static, "ras", "bad_page_threshold_exceeded")
    return Gpu(
        uuid=_said(listed, "uuid") or "", serial=_said(static, "board", "product_serial") or "",
        bus=bus_of(_said(listed, "bdf") or ""), name=_said(static, "asic", "market_name") or "", maker="amd",
        ecc=dict(_ecc(metric)),
        rows_failed={"true": True, "yes": True, "false": False, "no": False}.get((exceeded or "").lower()),
        temperature=_whole(metric, "temperature", "hotspot"),
        slow_at=_whole(static, "limit", "slowdown_hotspot_temperature"),
        width=_whole(metric, "pcie", "width"), max_width=_whole(static, "bus", "max_pcie_width"),
        replays=_whole(metric, "pcie", "replay_count"), use=_whole(metric, "usage", "gfx_activity"),
    )  # fmt: skip


def _ecc(metric: Any) -> Iterator[tuple[str, int]]:
    """Since the driver was loaded: the memory's own block is UMC, all others are of the chip. Where blocks are not told
    apart, errors are taken for the memory's, which is the milder."""
    for ours, theirs in (("uncorrectable", "uncorrectable_count"), ("correctable", "correctable_count")):
        total = _whole(metric, "ecc", f"total_{theirs}")
        memory = _whole(metric, "ecc_blocks", "UMC", theirs)
        if total is not None:
            yield f"volatile.dram_{ours}", total if memory is None else memory
            yield f"volatile.sram_{ours}", 0 if memory is None else max(0, total - memory)


def _at(given: Any, *keys: str) -> Any:
    """What is there; of a figure with a unit the figure."""
    for key in keys:
        given = given.get(key) if isinstance(given, dict) else None
    return given.get("value") if isinstance(given, dict) else given


def _said(given: Any, *keys: str) -> str | None:
    found = _at(given, *keys)
    lacks = isinstance(found, str) and found.strip().lower() in {"", "n/a"}
    return found if isinstance(found, str) and not lacks else str(found) if isinstance(found, bool) else None


def _whole(given: Any, *keys: str) -> int | None:
    found = _at(given, *keys)
    return int(found) if type(found) in {int, float} and abs(found) < 1e15 else None
