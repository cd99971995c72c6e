"""Parse the output of amd-smi. Pure. Raises nothing for any input; unknown values are None.

amd-smi reports less than nvidia-smi: no recovery action, no clock event reasons; bad pages instead of rows.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from opsctl.nodes.health.node_state import Gpu, Smi
from opsctl.nodes.health.nvidia_smi import normalize_bus

PARTS = re.compile(r"^@(list|static|metric)$", re.MULTILINE)
EXCEEDED = {"true": True, "yes": True, "false": False, "no": False}
MAX_NUMBER = 1e15


def parse_amd(text: str) -> Smi | None:
    """Parse `amd-smi list`, `static` and `metric`, each `--json` after a line `@<name>`. None for incomplete output."""
    parts = PARTS.split(text)
    tables = {name: _parse_rows(table) for name, table in zip(parts[1::2], parts[2::2], strict=False)}
    listed, static, metric = tables.get("list"), tables.get("static"), tables.get("metric")
    if not listed or static is None or metric is None:
        return None
    gpus = tuple(
        _parse_gpu(row, static.get(number, {}), metric.get(number, {})) for number, row in sorted(listed.items())
    )
    driver = next((_read_text(row, "driver", "version") for row in static.values()), None)
    return Smi(driver=driver or "", attached=None, gpus=gpus)


def _parse_rows(text: str) -> dict[int, Any] | None:
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


def _parse_gpu(listed: Any, static: Any, metric: Any) -> Gpu:
    exceeded = _read_text(static, "ras", "bad_page_threshold_exceeded")
    return Gpu(
        uuid=_read_text(listed, "uuid") or "",
        serial=_read_text(static, "board", "product_serial") or "",
        bus=normalize_bus(_read_text(listed, "bdf") or ""),
        name=_read_text(static, "asic", "market_name") or "",
        maker="amd",
        ecc=dict(_read_ecc(metric)),
        rows_failed=EXCEEDED.get((exceeded or "").lower()),
        temperature_c=_read_int(metric, "temperature", "hotspot"),
        slowdown_c=_read_int(static, "limit", "slowdown_hotspot_temperature"),
        pcie_lanes=_read_int(metric, "pcie", "width"),
        max_pcie_lanes=_read_int(static, "bus", "max_pcie_width"),
        replays=_read_int(metric, "pcie", "replay_count"),
        use_percent=_read_int(metric, "usage", "gfx_activity"),
    )


def _read_ecc(metric: Any) -> Iterator[tuple[str, int]]:
    """Yield the error counters since driver load. The block UMC is memory, all other blocks are the chip.

    Errors without a block count as memory errors, the less severe kind.
    """
    for kind in ("uncorrectable", "correctable"):
        total = _read_int(metric, "ecc", f"total_{kind}_count")
        memory = _read_int(metric, "ecc_blocks", "UMC", f"{kind}_count")
        if total is not None:
            yield f"volatile.dram_{kind}", total if memory is None else memory
            yield f"volatile.sram_{kind}", 0 if memory is None else max(0, total - memory)


def _find(value: Any, *keys: str) -> Any:
    """Return the value at a path, without the unit if the value has one."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value.get("value") if isinstance(value, dict) else value


def _read_text(value: Any, *keys: str) -> str | None:
    text = _find(value, *keys)
    if isinstance(text, bool):
        return str(text)
    if not isinstance(text, str) or text.strip().lower() in {"", "n/a"}:
        return None
    return text


def _read_int(value: Any, *keys: str) -> int | None:
    number = _find(value, *keys)
    return int(number) if type(number) in {int, float} and abs(number) < MAX_NUMBER else None
