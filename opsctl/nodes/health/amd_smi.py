"""Parse the output of amd-smi. Pure. Raises nothing for any input; unknown values are None.

amd-smi reports less than nvidia-smi: no recovery action, no clock event reasons; bad pages instead of rows.
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
    """Parse `amd-smi list`, `static` and `metric`, each `--json` after a line `@<name>`. None for incomplete output."""
    words = PARTS.split(text)
    tables = {name: _rows(table) for name, table in zip(words[1::2], words[2::2], strict=False)}
    listed, static, metric = (tables.get(name) for name in ("list", "static", "metric"))
    if not listed or static is None or metric is None:
        return None
    cards = tuple(_gpu(row, static.get(number, {}), metric.get(number, {})) for number, row in sorted(listed.items()))
    driver = next((_read_text(row, "driver", "version") for row in static.values()), None)
    return Smi(driver=driver or "", attached=None, gpus=cards)


def _rows(text: str) -> dict[int, Any] | None:
    """Return the rows by GPU number: a list, or a list below `gpu_data`. Warnings may precede the JSON."""
    match = re.search(r"^[\[{]", text, re.MULTILINE)
    try:
        value = json.loads(text[match.start() :]) if match else None
    except (ValueError, RecursionError):
        return None
    rows = value.get("gpu_data") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        return None
    return {row["gpu"]: row for row in rows if isinstance(row, dict) and type(row.get("gpu")) is int}


def _gpu(listed: Any, static: Any, metric: Any) -> Gpu:
    exceeded = _read_text(static, "ras", "bad_page_threshold_exceeded")
    return Gpu(
        uuid=_read_text(listed, "uuid") or "", serial=_read_text(static, "board", "product_serial") or "",
        bus=bus_of(_read_text(listed, "bdf") or ""), name=_read_text(static, "asic", "market_name") or "", maker="amd",
        ecc=dict(_ecc(metric)),
        rows_failed={"true": True, "yes": True, "false": False, "no": False}.get((exceeded or "").lower()),
        temperature=_whole(metric, "temperature", "hotspot"),
        slow_at=_whole(static, "limit", "slowdown_hotspot_temperature"),
        width=_whole(metric, "pcie", "width"), max_width=_whole(static, "bus", "max_pcie_width"),
        replays=_whole(metric, "pcie", "replay_count"), use=_whole(metric, "usage", "gfx_activity"),
    )  # fmt: skip


def _ecc(metric: Any) -> Iterator[tuple[str, int]]:
    """Yield the error counters since driver load. The block UMC is memory, all other blocks are the chip.

    Errors without a block count as memory errors, the less severe kind.
    """
    for ours, theirs in (("uncorrectable", "uncorrectable_count"), ("correctable", "correctable_count")):
        total = _whole(metric, "ecc", f"total_{theirs}")
        memory = _whole(metric, "ecc_blocks", "UMC", theirs)
        if total is not None:
            yield f"volatile.dram_{ours}", total if memory is None else memory
            yield f"volatile.sram_{ours}", 0 if memory is None else max(0, total - memory)


def _at(value: Any, *keys: str) -> Any:
    """Return the value at a path; of a number with a unit, the number."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value.get("value") if isinstance(value, dict) else value


def _read_text(value: Any, *keys: str) -> str | None:
    text = _at(value, *keys)
    if isinstance(text, bool):
        return str(text)
    if not isinstance(text, str) or text.strip().lower() in {"", "n/a"}:
        return None
    return text


def _whole(value: Any, *keys: str) -> int | None:
    figure = _at(value, *keys)
    return int(figure) if type(figure) in {int, float} and abs(figure) < 1e15 else None
