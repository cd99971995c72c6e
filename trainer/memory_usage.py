"""Memory in use on this node and on this GPU, in percent (0-100)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""Limit in bytes above which cgroups v1 means unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUsage:
    """The memory limits of a run and this rank's measurements; a limit of None is neither measured nor exceeded."""

    where: str = ""
    """Name of the process in messages."""
    host_limit: float | None = None
    gpu_limit: float | None = None

    def measure(self) -> tuple[float, float]:
        """Return the percent of host memory and of GPU memory in use now."""
        host = 0.0 if self.host_limit is None else host_percent()
        return host, 0.0 if self.gpu_limit is None else gpu_percent()

    def describe_excess(self, host: float, gpu: float) -> str:
        """Return a description if the fullest node or the fullest GPU is above its limit, else an empty text."""
        if self.host_limit is not None and host > self.host_limit:
            return f"host memory is {host:.1f} % full, and the limit is {self.host_limit:g} %"
        if self.gpu_limit is not None and gpu > self.gpu_limit:
            return f"GPU memory is {gpu:.1f} % full, and the limit is {self.gpu_limit:g} %"
        return ""

    def name_if_full(self) -> str:
        """Return the name of this process if its memory is above a limit, else an empty text."""
        return self.where if self.describe_excess(*self.measure()) else ""


def host_percent(*, meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/proc/self/cgroup")) -> float:
    """Return the percent in use of the node's memory or of the job's cgroup limit, whichever is higher.

    Reclaimable caches do not count. Returns 0 if nothing can be read: an unknown usage is no reason to stop.
    """
    return max(_node_percent(meminfo), *(_group_percent(group) for group in _groups(cgroup)), 0.0)


def gpu_percent() -> float:
    """Return the percent of this rank's GPU memory in use, without the allocator's free cache; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return float(100.0 * (total - free - cached) / total)


def _node_percent(meminfo: Path) -> float:
    known = _numbers(meminfo)
    total = known.get("MemTotal:", 0)
    return 100.0 * (total - known.get("MemAvailable:", total)) / total if total else 0.0


def _groups(cgroup: Path) -> list[Path]:
    """Return the directories of the memory cgroup of this process and of its parent cgroups."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            inner = _ROOT / ("memory" if controllers else "") / path.lstrip("/")
            return [inner, *(parent for parent in inner.parents if _ROOT in parent.parents)]
    return []


def _group_percent(group: Path) -> float:
    limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
    used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes")
    if not limit or limit > _UNLIMITED or not used:
        return 0.0
    stat = _numbers(group / "memory.stat")
    return 100.0 * max(0, used - stat.get("inactive_file", 0) - stat.get("active_file", 0)) / limit


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" is no limit
        return 0


def _numbers(path: Path) -> Mapping[str, int]:
    try:
        pairs = (line.split()[:2] for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    except (OSError, ValueError):
        return {}
