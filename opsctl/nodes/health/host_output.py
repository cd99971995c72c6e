"""Parse what the system's own programs, /sys and NVMe disks say about a node. Pure. Raises nothing for any input."""

import json
import re
from collections.abc import Iterator
from typing import Any

from opsctl.base.tables import read_patterns
from opsctl.nodes.health.node_state import DiskLog, Fio, Hardware, KernelLine, Mount, NodeProcess, Port, Section

STAMP = re.compile(r"^\[\s*(\d{1,12}\.\d{1,9})\]\s?(?:\S+ kernel:\s)?(.*)$", re.ASCII)
STAT = re.compile(r"^(\d{1,10}) \((.*)\) (\S) (.*)$", re.ASCII)
RATE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) Gb/sec", re.ASCII)
LIBRARY = re.compile(r"(lib[a-z0-9]{1,20})\.so\.([0-9.]{1,30})", re.ASCII)
MAX_PROCESSES = 5000
MAX_DCGM_DEPTH = 20
MAX_MESSAGE_CHARS = 200
DEFAULT_TICKS_PER_S = 100
START_FIELD = 18
"""Index of the start time among the fields of /proc/PID/stat that follow the state."""
PATTERNS = read_patterns("nodes/health/hardware_output.toml", "lines")
BYTES_PER_MIB = float(1 << 20)


def parse_settings(text: str) -> dict[str, str]:
    """Parse lines of the form `name=value`."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def parse_int(text: str) -> int | None:
    """Parse at most 18 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def find_json(text: str) -> Any:
    """Return the JSON object at the end of a text; None without one. Warnings may precede it."""
    start = text.find("{")
    try:
        return json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return None


def parse_float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[+-]?\d{1,15}(\.\d{1,12})?", text, re.ASCII) else None


def parse_kernel(text: str, uptime_s: float | None) -> tuple[KernelLine, ...]:
    """Parse the kernel log. A line has an age if both the line's time and the uptime are known."""
    lines = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("source="):
            continue
        stamp = STAMP.match(line)
        age_s = max(0.0, uptime_s - float(stamp[1])) if stamp and uptime_s is not None else None
        lines.append(KernelLine(age_s=age_s, text=stamp[2] if stamp else line))
    return tuple(lines)


def parse_processes(text: str, uptime_s: float | None) -> tuple[NodeProcess, ...] | None:
    """Parse the owners and the `stat` files of /proc. Processes of root count only in state D or Z."""
    parts = re.split(r"^--\n", text, flags=re.MULTILINE)
    if len(parts) != 3:
        return None
    owners: dict[str, str] = {}
    for line in parts[0].splitlines():
        pid, _, uid = line.partition(" ")
        owners[pid] = uid
    ticks_per_s = parse_int(parts[2].strip()) or DEFAULT_TICKS_PER_S
    processes = []
    for line in parts[1].splitlines():
        process = _parse_process(line, owners, ticks_per_s, uptime_s)
        if process and (process.uid > 0 or process.state in "DZ"):
            processes.append(process)
    return tuple(processes[:MAX_PROCESSES])


def _parse_process(line: str, owners: dict[str, str], ticks_per_s: int, uptime_s: float | None) -> NodeProcess | None:
    match = STAT.match(line)
    if match is None:
        return None
    fields = match[4].split()
    uid = parse_int(owners.get(match[1], ""))
    start_ticks = parse_int(fields[START_FIELD]) if len(fields) > START_FIELD else None
    if uid is None or start_ticks is None:
        return None
    age_s = max(0.0, uptime_s - start_ticks / ticks_per_s) if uptime_s is not None else 0.0
    return NodeProcess(pid=int(match[1]), uid=uid, state=match[3], age_s=age_s, start_ticks=start_ticks, name=match[2])


def parse_df(text: str) -> Iterator[tuple[int, int]]:
    """Yield the size and the used percentage of every row that `df -P` printed."""
    for line in text.splitlines():
        match = re.search(r"\s(\d{1,18})\s+(\d{1,18}|-)\s+(\d{1,18}|-)\s+(\d{1,3})%\s", line, re.ASCII)
        if match:
            yield int(match[1]), int(match[4])


def parse_mount(section: Section) -> Mount:
    """Parse the mount options of a path, and the used percentage of bytes and inodes."""
    lines = section.out.splitlines()
    path = next((line[5:] for line in lines if line.startswith("path=")), "")
    mounted = [line[8:] for line in lines if line.startswith("mounted=")]
    percents = [percent for _, percent in parse_df(section.out)]
    return Mount(
        path=path,
        section=Section(code=section.code, err=section.err),
        options=mounted[-1].partition(" ")[2] if mounted else None,
        percent=percents[0] if percents else None,
        inode_percent=percents[1] if len(percents) > 1 else None,
    )


def parse_ports(text: str) -> dict[str, Port]:
    """Parse lines of the form `device/ports/number/file:value` from /sys/class/infiniband."""
    states: dict[str, str] = {}
    counters: dict[str, dict[str, int]] = {}
    rates: dict[str, float] = {}
    for line in text.splitlines():
        path, _, value = line.partition(":")
        parts = path.split("/")
        if len(parts) < 4 or parts[1] != "ports":
            continue
        port = f"{parts[0]}/{parts[2]}"
        if parts[3] == "state":
            states[port] = value.rpartition(":")[2].strip()
            continue
        if parts[3] == "rate" and (rate := RATE.match(value)):
            rates[port] = float(rate[1])
            continue
        count = parse_int(value.strip())
        if len(parts) == 5 and count is not None:
            counters.setdefault(port, {})[parts[4]] = count
    return {
        port: Port(state=state, counters=counters.get(port, {}), rate_gbps=rates.get(port))
        for port, state in states.items()
    }


def parse_offset(text: str) -> float | None:
    """Parse `chronyc tracking`. Return the seconds that the system's clock is ahead."""
    match = re.search(r"^System time\s*:\s*(\d{1,9}\.\d{1,12}) seconds (fast|slow)", text, re.MULTILINE | re.ASCII)
    if match is None:
        return None
    return float(match[1]) if match[2] == "fast" else -float(match[1])


def parse_libraries(text: str) -> dict[str, str]:
    """Parse file names of shared libraries. Return the versions by library."""
    versions_by_name: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := LIBRARY.fullmatch(line):
            versions_by_name.setdefault(match[1], []).append(match[2])
    return {name: ", ".join(versions) for name, versions in versions_by_name.items()}


def parse_dcgm(text: str) -> tuple[tuple[str, str, str], ...] | None:
    """Parse `dcgmi diag -j`. Return tests, results and messages.

    The form changes with every version, so any object with a name and any result below that object count.
    """
    return tuple(_walk_tests(find_json(text), "", 0)) or None


def _walk_tests(value: Any, name: str, depth: int) -> Iterator[tuple[str, str, str]]:
    if depth > MAX_DCGM_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            yield from _walk_tests(item, name, depth + 1)
    elif isinstance(value, dict):
        own_name = value.get("name")
        name = own_name if isinstance(own_name, str) else name
        result = value.get("status", value.get("result"))
        if isinstance(result, str):
            yield name, result.lower(), _render_message(value)
        for item in value.values():
            yield from _walk_tests(item, name, depth + 1)


def _render_message(fields: dict[str, Any]) -> str:
    message = fields.get("warnings", fields.get("warning", fields.get("info", "")))
    if not message:
        return ""
    text = json.dumps(message, ensure_ascii=False).strip('[]{}"')
    return " ".join(text.split())[:MAX_MESSAGE_CHARS]


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
