"""Parse the output of nvidia-smi. Pure. Raises nothing for any input; unknown values are None.

Versions differ in words (`Yes`, `1`, `Enabled`) and in fields; a value that a driver lacks reads
`N/A`, `[N/A]`, `Requested functionality has been deprecated`, or is missing.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree as ET

from opsctl.base.tables import read_package_table
from opsctl.nodes.health.node_state import Gpu, GpuProcess, Smi

_PATHS: dict[str, dict[str, str]] = read_package_table("nodes/health/nvidia_smi.toml")
END_TAG = "</nvidia_smi_log>"
YES = frozenset({"yes", "1", "enabled", "active"})
NO = frozenset({"no", "0", "disabled", "not active"})
NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,6})?", re.ASCII)
BUS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.\d)?", re.ASCII)
UNCORRECTABLE = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded")
LINK_LINE = re.compile(r"^\s*Link (\d{1,3}): (.*)$", re.ASCII)
GPU_LINE = re.compile(r"^\s*GPU \d+:.*\(UUID: ([^)\s]{1,100})\)")


def parse_smi(text: str) -> Smi | None:
    """Parse the output of `nvidia-smi -q -x`. Return None for incomplete output."""
    start, end = text.find("<nvidia_smi_log"), text.rfind(END_TAG)
    if start < 0 or end < 0 or "<!ENTITY" in text:
        return None
    end += len(END_TAG)
    try:
        root = ET.fromstring(text[start:end])  # noqa: S314 (the text declares no entities)  # nosec B314
    except (ET.ParseError, ValueError, RecursionError):
        return None
    messages = re.sub(r"<[?!][^>]*>", "", text[:start] + text[end:])
    attached = parse_int(read_text(root, "attached_gpus"))
    if attached is None:  # every version prints the number of GPUs: output without the number is incomplete
        return None
    return Smi(
        driver=read_text(root, "driver_version") or "",
        attached=attached,
        gpus=tuple(_parse_gpu(element) for element in root.findall("gpu")),
        messages=" ".join(messages.split()),
    )


def _parse_gpu(card: ET.Element) -> Gpu:
    fields: dict[str, Any] = {}
    for form, paths in _PATHS.items():
        fields |= {field: _PARSERS[form](read_text(card, path)) for field, path in paths.items()}
    return Gpu(
        uuid=read_text(card, "uuid") or "",
        serial=read_text(card, "serial") or "",
        bus=normalize_bus(read_text(card, "pci/pci_bus_id") or card.get("id") or ""),
        name=read_text(card, "product_name") or "",
        ecc_mode=read_mode(card, "ecc_mode/current_ecc"),
        ecc=dict(_read_ecc(card)) or dict(_read_volta_ecc(card)),
        retired_pages=_read_retired_pages(card),
        clocks=_read_clocks(card),
        power_limit_w=_read_power_w(card, "current_power_limit", "power_limit"),
        default_power_limit_w=_read_power_w(card, "default_power_limit", "default_power_limit"),
        processes=tuple(_read_processes(card)),
        **fields,
    )


def read_text(card: ET.Element, path: str) -> str | None:
    """Return the text at a path, None for missing text and for text such as `N/A`."""
    text = (card.findtext(path) or "").strip()
    is_missing = text.strip("[]").lower() in {"", "n/a", "not supported", "unknown error", "unknown"}
    return None if is_missing or "deprecated" in text or "not supported" in text.lower() else text


def read_mode(card: ET.Element, path: str) -> str:
    """Return the mode at a path in small letters. `n/a` is what the driver prints for a card without the feature."""
    return (card.findtext(path) or "").strip().strip("[]").lower()


def parse_bool(text: str | None) -> bool | None:
    """Parse the words of YES and NO. Return None for other text."""
    word = (text or "").lower()
    if word in YES:
        return True
    return False if word in NO else None


def parse_number(text: str | None) -> float | None:
    """Parse the number at the start of text such as `500.00 W`, `16x` or `-2 C`."""
    match = NUMBER.match(text or "")
    return float(match[0]) if match else None


def parse_int(text: str | None) -> int | None:
    value = parse_number(text)
    return None if value is None else int(value)


_PARSERS: dict[str, Callable[[str | None], Any]] = {"text": lambda text: text, "bool": parse_bool, "int": parse_int}


def normalize_bus(text: str) -> str:
    """Return `0000:10:1c` for `00000000:10:1C.0` or `PCI:0000:10:1c`; an empty string for other text."""
    match = BUS.fullmatch(text.strip().lower().removeprefix("pci:"))
    if match is None:
        return ""
    domain, bus, device = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def _read_ecc(card: ET.Element) -> Iterator[tuple[str, int]]:
    for span in ("volatile", "aggregate"):
        for name in ("sram_correctable", "dram_correctable", "dram_uncorrectable"):
            count = parse_int(read_text(card, f"ecc_errors/{span}/{name}"))
            if count is not None:
                yield f"{span}.{name}", count
        total = _sum_known(card, [f"ecc_errors/{span}/{name}" for name in UNCORRECTABLE])
        if total is not None:
            yield f"{span}.sram_uncorrectable", total


def _read_volta_ecc(card: ET.Element) -> Iterator[tuple[str, int]]:
    """Yield the counters of Volta and older cards, which count single and double bits by memory.

    Device memory is DRAM; registers and caches are SRAM.
    """
    for span in ("volatile", "aggregate"):
        for bits, name in (("single_bit", "correctable"), ("double_bit", "uncorrectable")):
            total = parse_int(read_text(card, f"ecc_errors/{span}/{bits}/total"))
            dram = parse_int(read_text(card, f"ecc_errors/{span}/{bits}/device_memory"))
            if total is not None and dram is not None:
                yield f"{span}.dram_{name}", dram
                yield f"{span}.sram_{name}", max(0, total - dram)


def _read_retired_pages(card: ET.Element) -> int | None:
    """Return the number of retired pages; None for a card that remaps rows instead."""
    causes = ("multiple_single_bit_retirement", "double_bit_retirement")
    return _sum_known(card, [f"retired_pages/{cause}/retired_count" for cause in causes])


def _sum_known(card: ET.Element, paths: list[str]) -> int | None:
    """Return the sum of the counts that the card reports; None without any."""
    counts = [count for path in paths if (count := parse_int(read_text(card, path))) is not None]
    return sum(counts) if counts else None


def _read_clocks(card: ET.Element) -> frozenset[str] | None:
    """Return the active clock event reasons. Drivers before 535 call them throttle reasons."""
    for word in ("event", "throttle"):
        table = card.find(f"clocks_{word}_reasons")
        if table is not None:
            start = f"clocks_{word}_reason_"
            return frozenset(element.tag.removeprefix(start) for element in table if parse_bool(element.text) is True)
    return None


def _read_power_w(card: ET.Element, new: str, old: str) -> float | None:
    value = parse_number(read_text(card, f"gpu_power_readings/{new}"))
    return value if value is not None else parse_number(read_text(card, f"power_readings/{old}"))


def _read_processes(card: ET.Element) -> Iterator[GpuProcess]:
    for element in card.findall("processes/process_info"):
        pid = parse_int(read_text(element, "pid"))
        if pid is not None and pid > 0:
            yield GpuProcess(
                pid=pid, kind=read_text(element, "type") or "", name=read_text(element, "process_name") or ""
            )


def parse_links(text: str) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Parse `nvidia-smi nvlink --status`. Return the links that are up, and those that are down, by UUID."""
    up: dict[str, tuple[int, ...]] = {}
    down: dict[str, tuple[int, ...]] = {}
    uuid = ""
    for line in text.splitlines():
        if match := GPU_LINE.match(line):
            uuid = match[1]
            up[uuid], down[uuid] = (), ()
        elif uuid and (link := LINK_LINE.match(line)):
            if "GB/s" in link[2]:
                up[uuid] = (*up[uuid], int(link[1]))
            elif "inactive" in link[2].lower():
                down[uuid] = (*down[uuid], int(link[1]))
    return up, down


def parse_link_errors(text: str) -> dict[str, int]:
    """Parse `nvidia-smi nvlink -e`. Return the sum of the error counters since driver load, by UUID."""
    sums: dict[str, int] = {}
    uuid = ""
    for line in text.splitlines():
        if match := GPU_LINE.match(line):
            uuid = match[1]
        elif uuid and (count := re.search(r"Errors?: (\d{1,15})\s*$", line, re.ASCII)):
            sums[uuid] = sums.get(uuid, 0) + int(count[1])
    return sums
