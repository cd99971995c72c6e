"""The nodes: shared memory, drivers, kinds of GPUs and their memory; software versions that are known to hang."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from opsctl.base.nodesets import fold
from opsctl.base.tables import read_package_table
from opsctl.calc.accelerators import accelerator
from opsctl.calc.gpu_memory import LIKELY, StageMemory
from opsctl.preflight.estimates import find_topology, memory_model
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import Fact, LaunchRequest, Problem, ProblemSeverity, error_if, note, warning
from opsctl.trainer.rank_layout import check_layout

SHM_BYTES_PER_RANK = 2**30
"""Shared memory for NCCL's buffers and the batches of DataLoader workers."""


def shm(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    needed = request.spec.processes_per_node * SHM_BYTES_PER_RANK
    sizes = {node.node: node.shm_kb * 1024 for node in facts.observed_nodes if node.shm_kb is not None}
    small = {node: size for node, size in sizes.items() if size < needed}
    if small and request.has_gpus:
        yield warning(
            "shm.small",
            nodes=fold(small),
            least=min(small.values()),
            ranks=request.spec.processes_per_node,
            needed=needed,
        )


def driver(_: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    drivers = {node.node: node.driver for node in facts.observed_nodes if node.driver}
    counts = Counter(drivers.values())
    if len(counts) > 1:
        most = counts.most_common(1)[0][0]
        odd = [node for node, version in drivers.items() if version != most]
        others = tuple(sorted({drivers[node] for node in odd}))
        yield warning("driver.differ", odd=len(odd), count=len(drivers), driver=most, nodes=fold(odd), others=others)


def gpu_kinds(_: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """The slowest GPU sets the speed of all ranks, and the smallest GPU their memory."""
    kinds: Counter[str] = Counter()
    for node in facts.observed_nodes:
        kinds.update(set(node.gpu_names))
    if len(kinds) > 1:
        counts = tuple(f"{name} on {count}" for name, count in kinds.most_common())
        yield warning("gpu-kinds.differ", count=len(kinds), kinds=counts)


@cache
def known() -> tuple[Mapping[str, Any], ...]:
    """Return the rows of versions.toml."""
    return tuple(read_package_table("preflight/versions.toml")["version"])


def versions(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    drivers = {node.driver for node in facts.observed_nodes if node.driver}
    for row in known():
        installed = drivers if row["of"] == "driver" else {facts.versions.get(row["of"], "")}
        for version in sorted(installed):
            wanted = row.get("with", {}).items()
            if version and _within(version, row) and wanted <= request.train.environment.items():
                problem = note if row["severity"] == ProblemSeverity.NOTE else warning
                sentences = {key: row[key] for key in ("says", "source", "remedy")}
                yield problem("versions.known", software=row["of"], version=version, **sentences)


def _within(version: str, row: Mapping[str, Any]) -> bool:
    """Return whether `version` is at least `since` and below `before`."""
    number = _parts(version)
    return _parts(row.get("since", "0")) <= number < _parts(row["before"])


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:4])


def unknown(_: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for subject, why in facts.unknown.items():
        yield note("unknown.fact", subject=subject, why=why)


CERTAIN = 0.95
"""Below this probability it is reported that the model of opsctl's own trainer may not fit."""


def memory(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Judge the GPU memory that the model needs."""
    fullest = _find_fullest_stage(request) if facts.gpu else None
    if fullest is None:
        return
    available = accelerator(facts.gpu).memory_gb
    fitting = fullest.fit_probability(available)
    needs: dict[str, Fact] = {"stage": fullest.stage, "gib": fullest.gib, "gpu": facts.gpu, "available": available}
    needs["fitting"] = fitting
    if request.recipe.is_embedded:
        if fitting < CERTAIN:
            yield error_if(fitting < 1 - CERTAIN, "memory.too_small", **needs)
    elif fitting < LIKELY:  # an estimate of a trainer that may do otherwise: never an error
        problem = warning if fitting < 0.5 else note
        yield problem("memory.too_small_by_estimate", **needs)


def _find_fullest_stage(request: LaunchRequest) -> StageMemory | None:
    """Return the stage that needs most memory; None if the layout is impossible or unknown."""
    recipe, planned = request.recipe, find_topology(request)
    if planned is None or (recipe.embedded and check_layout(recipe.embedded, request.world)):
        return None
    shape, topology, batch = planned
    return memory_model(recipe)(shape, topology, batch=batch)
