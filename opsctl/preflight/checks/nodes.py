"""The nodes, and software versions that are known to hang."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from opsctl.base.nodesets import fold
from opsctl.base.units import format_size
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, ProblemLevel, note, warning
from opsctl.trainer.precision import SLOWDOWN_FROM_BF16

SHM_BYTES_PER_RANK = 2**30
"""Shared memory for NCCL's buffers and the batches of DataLoader workers."""
TABLE = Path(__file__).parent.parent / "versions.toml"


def shm(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    needed = request.spec.processes_per_node * SHM_BYTES_PER_RANK
    sizes = {node.node: node.shm_kb * 1024 for node in facts.observed_nodes if node.shm_kb is not None}
    small = {node: size for node, size in sizes.items() if size < needed}
    if small and request.has_gpus:
        yield warning(
            f"shared memory (/dev/shm) of {fold(small)} has {format_size(min(small.values()))} or more, but"
            f" {request.spec.processes_per_node} ranks need {format_size(needed)}: DataLoader workers"
            " would die of a bus error",
            "ask for a larger /dev/shm, or use --num-workers 0",
        )


def driver(_: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    drivers = {node.node: node.driver for node in facts.observed_nodes if node.driver}
    counts = Counter(drivers.values())
    if len(counts) > 1:
        most = counts.most_common(1)[0][0]
        odd = [node for node, version in drivers.items() if version != most]
        text = ", ".join(sorted({drivers[node] for node in odd}))
        yield warning(
            f"{len(odd)} of {len(drivers)} nodes have a driver other than {most}: {fold(odd)} ({text})",
            f"exclude these nodes, or ask for driver {most} on them",
        )


def gpu_kinds(_: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """The slowest GPU sets the speed of all ranks, and the smallest GPU their memory."""
    kinds: Counter[str] = Counter()
    for node in facts.observed_nodes:
        kinds.update(set(node.gpus))
    if len(kinds) > 1:
        text = ", ".join(f"{name} on {count}" for name, count in kinds.most_common())
        yield warning(f"the nodes have {len(kinds)} kinds of GPU: {text}", "select one kind with [slurm] constraint")


@cache
def known() -> tuple[Mapping[str, Any], ...]:
    """Return the rows of versions.toml."""
    return tuple(tomllib.loads(TABLE.read_text(encoding="utf-8"))["version"])


def processor(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Judge the processor of this machine for all nodes: nobody reports the processors of compute nodes."""
    config = request.recipe.embedded
    if config and config.precision == "bf16" and facts.processor_without_bf16 and not request.has_gpus:
        yield warning(
            f"[trainer] precision = bf16 without GPUs: {facts.processor_without_bf16}, of this machine, has no bf16"
            f" instructions, and products in bf16 take about {SLOWDOWN_FROM_BF16} times as long as in fp32",
            'set precision = "auto"; a run with checkpoints keeps their precision',
        )


def versions(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    drivers = {node.driver for node in facts.observed_nodes if node.driver}
    for row in known():
        installed = drivers if row["of"] == "driver" else {facts.versions.get(row["of"], "")}
        for version in sorted(installed):
            if version and _within(version, row) and _holds(row, request):
                problem = note if row["level"] == ProblemLevel.NOTE else warning
                yield problem(f"{row['of']} {version}: {row['says']} ({row['source']})", row["remedy"])


def _within(version: str, row: Mapping[str, Any]) -> bool:
    """Return whether `version` is at least `since` and below `before`."""
    number = _parts(version)
    return _parts(row.get("since", "0")) <= number < _parts(row["before"])


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:4])


def _holds(row: Mapping[str, Any], request: LaunchRequest) -> bool:
    return all(request.train.environment.get(name) == value for name, value in row.get("with", {}).items())


def unknown(_: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for subject, why in facts.unknown.items():
        yield note(f"unknown: {subject}: {why}", "checks that need this were skipped")
