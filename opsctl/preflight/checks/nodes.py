"""What is known of the nodes themselves, and of versions that were seen to hang."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from opsctl.nodesets import fold
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, ProblemLevel, note, warning
from opsctl.units import format_size

SHM = 2**30
"""Bytes of shared memory for each rank: NCCL's buffers, and the batches that DataLoader workers hand over."""
TABLE = Path(__file__).parent.parent / "versions.toml"


def shm(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    wanted = request.spec.processes_per_node * SHM
    small = {
        observed_node.node: observed_node.shm_kb * 1024
        for observed_node in facts.observed_nodes
        if observed_node.shm_kb is not None
    }
    if few := {node: size for node, size in small.items() if size < wanted and request.has_gpus}:
        yield warning(
            f"shared memory (/dev/shm) of {fold(few)} has {format_size(min(few.values()))} or more, and"
            f" {request.spec.processes_per_node} ranks want {format_size(wanted)}: DataLoader workers die"
            " of a bus error",
            "have it mounted larger, or --num-workers 0",
        )


def driver(_: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    there = {observed_node.node: observed_node.driver for observed_node in facts.observed_nodes if observed_node.driver}
    if len(counts := Counter(there.values())) > 1:
        most = counts.most_common(1)[0][0]
        odd = [node for node, version in there.items() if version != most]
        text = ", ".join(sorted({there[node] for node in odd}))
        yield warning(
            f"{len(odd)} of {len(there)} nodes have another driver than {most}: {fold(odd)} ({text})",
            f"exclude them, or have them brought to {most}",
        )


def gpu_kinds(_: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """The slowest card is the speed of all, the smallest their memory."""
    kinds = Counter(name for observed_node in facts.observed_nodes for name in set(observed_node.gpus))
    if len(kinds) > 1:
        text = ", ".join(f"{name} on {count}" for name, count in kinds.most_common())
        yield warning(f"the nodes have {len(kinds)} kinds of GPU: {text}", "[slurm] constraint names one kind")


@cache
def known() -> tuple[Mapping[str, Any], ...]:
    """versions.toml."""
    return tuple(tomllib.loads(TABLE.read_text(encoding="utf-8"))["version"])


def versions(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    drivers = {observed_node.driver for observed_node in facts.observed_nodes if observed_node.driver}
    for row in known():
        there = drivers if row["of"] == "driver" else {facts.versions.get(row["of"], "")}
        for version in sorted(there):
            if version and _within(version, row) and _holds(row, request):
                say = note if row["level"] == ProblemLevel.NOTE else warning
                yield say(f"{row['of']} {version}: {row['says']} ({row['source']})", row["remedy"])


def _within(version: str, row: Mapping[str, Any]) -> bool:
    """From `since` on, and below `before`."""
    number = _parts(version)
    return _parts(row.get("since", "0")) <= number < _parts(row["before"])


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version.partition("+")[0])[:4])


def _holds(row: Mapping[str, Any], request: LaunchRequest) -> bool:
    return all(request.train.environment.get(name) == value for name, value in row.get("with", {}).items())


def unknown(_: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for what, why in facts.unknown.items():
        yield note(f"could not look: {what}: {why}", "what depends on it was not checked")
