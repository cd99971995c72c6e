"""From the words of a node's system to figures. Pure; whatever it is fed, nothing is raised."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from opsctl.nodes.health.node_state import KernelLine, Mount, NodeProcess, Port, Section

STAMP = re.compile(r"^\[\s*(\d{1,12}\.\d{1,9})\]\s?(?:\S+ kernel:\s)?(.*)$", re.ASCII)
STAT = re.compile(r"^(\d{1,10}) \((.*)\) (\S) (.*)$", re.ASCII)
LIBRARY = re.compile(r"(lib[a-z0-9]{1,20})\.so\.([0-9.]{1,30})", re.ASCII)
MOST_PROCESSES = 5000


def settings(text: str) -> dict[str, str]:
    """Lines of `name=value`."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def digits(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def decimal(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[+-]?\d{1,15}(\.\d{1,12})?", text, re.ASCII) else None


def parse_kernel(text: str, uptime: float | None) -> tuple[KernelLine, ...]:
    """The kernel's log, in order. A line's age is known where both it and the uptime are."""
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("source="):
            continue
        stamp = STAMP.match(line)
        age = max(0.0, uptime - float(stamp[1])) if stamp and uptime is not None else None
        found.append(KernelLine(age=age, text=stamp[2] if stamp else line))
    return tuple(found)


def parse_processes(text: str, uptime: float | None) -> tuple[NodeProcess, ...] | None:
    """Users and `stat` files of /proc; the system's own processes that do nothing odd are left out."""
    parts = re.split(r"^--\n", text, flags=re.MULTILINE)
    if len(parts) != 3:
        return None
    owners = {pid: uid for line in parts[0].splitlines() for pid, _, uid in [line.partition(" ")]}
    ticks = digits(parts[2].strip()) or 100
    node_processes = [_process(line, owners, ticks, uptime) for line in parts[1].splitlines()]
    odd = [
        node_process
        for node_process in node_processes
        if node_process and (node_process.uid > 0 or node_process.state in "DZ")
    ]
    return tuple(odd[:MOST_PROCESSES])


def _process(line: str, owners: dict[str, str], ticks: int, uptime: float | None) -> NodeProcess | None:
    match = STAT.match(line)
    rest = match[4].split() if match else []
    uid = digits(owners.get(match[1], "")) if match else None
    started = digits(rest[18]) if len(rest) > 18 else None
    if match is None or uid is None or started is None:
        return None
    age = max(0.0, uptime - started / ticks) if uptime is not None else 0.0
    return NodeProcess(pid=int(match[1]), uid=uid, state=match[3], age=age, started=started, name=match[2])


def parse_df(text: str) -> Iterator[tuple[int, int]]:
    """Size and percent of each row of figures in what `df -P` prints, one after the other."""
    for line in text.splitlines():
        match = re.search(r"\s(\d{1,18})\s+(\d{1,18}|-)\s+(\d{1,18}|-)\s+(\d{1,3})%\s", line, re.ASCII)
        if match:
            yield int(match[1]), int(match[4])


def parse_mount(section: Section) -> Mount:
    """Mounted how, and how full in bytes and inodes."""
    lines = section.out.splitlines()
    path = next((line[5:] for line in lines if line.startswith("path=")), "")
    mounted = [line[8:] for line in lines if line.startswith("mounted=")]
    full = [percent for _, percent in parse_df(section.out)]
    bare = Section(code=section.code, err=section.err)
    return Mount(
        path=path, section=bare, options=mounted[-1].partition(" ")[2] if mounted else None,
        percent=full[0] if full else None, inode_percent=full[1] if len(full) > 1 else None,
    )  # fmt: skip


def parse_ports(text: str) -> dict[str, Port]:
    """`device/ports/number/file:value` lines of /sys/class/infiniband."""
    states: dict[str, str] = {}
    counters: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        path, _, value = line.partition(":")
        parts = path.split("/")
        if len(parts) < 4 or parts[1] != "ports":
            continue
        port = f"{parts[0]}/{parts[2]}"
        if parts[3] == "state":
            states[port] = value.rpartition(":")[2].strip()
        elif len(parts) == 5 and (count := digits(value.strip())) is not None:
            counters.setdefault(port, {})[parts[4]] = count
    return {port: Port(state=state, counters=counters.get(port, {})) for port, state in states.items()}


def parse_offset(text: str) -> float | None:
    """`chronyc tracking`: seconds that the system's clock is ahead; None where it says nothing."""
    match = re.search(r"^System time\s*:\s*(\d{1,9}\.\d{1,12}) seconds (fast|slow)", text, re.MULTILINE | re.ASCII)
    if match is None:
        return None
    return float(match[1]) if match[2] == "fast" else -float(match[1])


def parse_libraries(text: str) -> dict[str, str]:
    """By name the versions of shared libraries, from the names of their files."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := LIBRARY.fullmatch(line):
            found.setdefault(match[1], []).append(match[2])
    return {name: ", ".join(versions) for name, versions in found.items()}


def parse_dcgm(text: str) -> tuple[tuple[str, str, str], ...] | None:
    """`dcgmi diag -j`, whose form changes with every version: whatever has a name and results below it."""
    start = text.find("{")
    try:
        value = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return None
    found = tuple(_tests(value, "", 0))
    return found or None


def _tests(value: Any, name: str, depth: int) -> Iterator[tuple[str, str, str]]:
    if depth > 20:
        return
    if isinstance(value, list):
        for item in value:
            yield from _tests(item, name, depth + 1)
    elif isinstance(value, dict):
        own = value.get("name")
        name = own if isinstance(own, str) else name
        result = value.get("status", value.get("result"))
        if isinstance(result, str):
            yield name, result.lower(), _words(value)
        for item in value.values():
            yield from _tests(item, name, depth + 1)


def _words(fields: dict[str, Any]) -> str:
    message = fields.get("warnings", fields.get("warning", fields.get("info", "")))
    return " ".join(json.dumps(message, ensure_ascii=False).strip('[]{}"').split())[:200] if message else ""
