"""Parse what /sys says about a node, and the SMART logs of NVMe disks. Pure. Raises nothing for any input."""

import re
from collections.abc import Iterator
from typing import Any

from opsctl.base.tables import read_patterns
from opsctl.nodes.health.host_output import find_json, parse_int, parse_settings
from opsctl.nodes.health.node_state import DiskLog, Fio, Hardware

PATTERNS = read_patterns("nodes/health/hardware_output.toml", "lines")
BYTES_PER_MIB = float(1 << 20)


def parse_hardware(text: str) -> Hardware:
    """Parse lines of the form `path below /sys:value`, and a few lines of the form `name=value`."""
    lines = text.splitlines()
    settings = parse_settings("\n".join(line for line in lines if re.match(r"\w{1,20}=", line)))
    values = {match[1].rpartition("/")[2]: match[2].strip() for match in _find_all("value", lines)}
    memory: dict[str, dict[str, int]] = {"ce": {}, "ue": {}}
    for match in _find_all("memory_count", lines):
        memory[match[2]][match[1]] = int(match[3])
    governors: dict[str, int] = {}
    for match in _find_all("governor", lines):
        governors[match[1]] = governors.get(match[1], 0) + 1
    pcie_errors: dict[str, dict[str, int]] = {}
    for match in _find_all("pcie_total", lines):
        pcie_errors.setdefault(match[1], {})[match[2]] = int(match[3])
    return Hardware(
        cpus=" ".join(settings.get("cpu", "").split()),
        product=values.get("product_name", ""),
        gpu_models=tuple(sorted({line.partition("=")[2] for line in lines if line.startswith("gpu_model=")})),
        clocksource=values.get("current_clocksource", ""),
        governors=governors,
        lustre=values.get("health_check", ""),
        corrected_memory=memory["ce"],
        uncorrected_memory=memory["ue"],
        pcie_errors=pcie_errors,
        disks={match[1]: match[2] for match in _find_all("disk_state", lines)},
        nvswitches=sum(line.startswith("nvswitch=") for line in lines),
        fabric_service=settings.get("fabric_service", "").strip(),
    )


def _find_all(name: str, lines: list[str]) -> Iterator[re.Match[str]]:
    yield from filter(None, map(PATTERNS[name].match, lines))


def parse_disk_logs(text: str) -> dict[str, DiskLog]:
    """Parse the SMART logs of NVMe disks, each after a line `@nvme0`: the JSON of nvme-cli or of smartctl."""
    parts = PATTERNS["disk_log"].split(text)
    logs = {}
    for name, log in zip(parts[1::2], parts[2::2], strict=False):
        fields = _parse_json(log)
        warning = _read_count(fields, "critical_warning")
        if warning is not None:
            logs[name] = DiskLog(
                critical_warning=warning,
                used_percent=_read_count(fields, "percent_used", "percentage_used"),
                media_errors=_read_count(fields, "media_errors"),
            )
    return logs


def _parse_json(text: str) -> dict[str, Any]:
    """Return the fields of a SMART log; smartctl nests them below a key."""
    value = find_json(text)
    if not isinstance(value, dict):
        return {}
    nested = value.get("nvme_smart_health_information_log")
    return nested if isinstance(nested, dict) else value


def _read_count(fields: dict[str, Any], *names: str) -> int | None:
    """Return the first of these counts. Newer nvme-cli nests the bits of a warning below `value`, or prints text."""
    for name in names:
        count = fields.get(name)
        if isinstance(count, dict):
            count = count.get("value")
        if type(count) is int and count >= 0:
            return count
        if isinstance(count, str) and (number := parse_int(count.strip())) is not None:
            return number
    return None


def parse_fio(text: str) -> Fio | None:
    """Parse `fio --output-format=json`. Return None for incomplete output."""
    output = find_json(text)
    try:
        jobs = {job["jobname"]: job for job in output["jobs"]}
        write, read, random = jobs["write"]["write"], jobs["read"]["read"], jobs["random"]["read"]
        return Fio(
            write_mib_s=_check_positive(write["bw_bytes"]) / BYTES_PER_MIB,
            read_mib_s=_check_positive(read["bw_bytes"]) / BYTES_PER_MIB,
            read_iops=_check_positive(random["iops"]),
            p99_ms=_read_p99_ms(random),
            is_direct=str(output["global options"]["direct"]) == "1",
        )
    except (ValueError, TypeError, KeyError, AttributeError):
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
