"""Settings with which Slurm refuses a train or never starts it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain

from opsctl.base.model import Accounting, JobSpec, Partition
from opsctl.base.nodesets import fold, nodeset, union
from opsctl.base.units import parse_slurm_minutes
from opsctl.launch.render import directives
from opsctl.preflight.effective_limits import list_qos
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, note, warning
from opsctl.slurm.batch_options import BatchOption, list_options

OURS = frozenset({"comment", "error", "open-mode", "output", "parsable", "requeue", "test-only", "wait", "wrap"})
"""sbatch options that opsctl sets itself, or that would hide the submitted job from opsctl."""
FEATURE = re.compile(r"[^\s&|*\[\](),!]+")
COUNT = re.compile(r"\*\d+")
"""The number of nodes with a feature: `rack1*2`."""
MIN_SPARE_SHARE = 0.05
OUT_OF_SERVICE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT"})
"""Node states in which no job starts. A node that does not answer (`*`) may answer again soon."""


def partition(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Report problems only if no partition fits: Slurm starts the job in the first partition that can."""
    if facts.cluster is None:
        return
    known = {partition.name: partition for partition in facts.cluster.partitions}
    names = find_partitions(request.spec, facts.cluster.partitions)
    if not names:
        yield error(
            f"[slurm] partition: none is set, and this cluster has no default; there are: {', '.join(known)}",
            "set partition to one of these",
        )
    judged = [list(_one_partition(request.spec, name, known, facts.cluster.accounting)) for name in names]
    if all(judged):
        yield from chain.from_iterable(judged)


def find_partitions(spec: JobSpec, partitions: tuple[Partition, ...]) -> list[str]:
    """Return the partitions in which the job may run."""
    if spec.partition:
        return spec.partition.split(",")
    return [partition.name for partition in partitions if partition.is_default]


def _one_partition(
    spec: JobSpec, name: str, known: dict[str, Partition], accounting: Accounting | None
) -> Iterator[Problem]:
    partition = known.get(name)
    if partition is None:
        near = get_close_matches(name, known, 1)
        advice = f"did you mean {near[0]!r}? " if near else ""
        yield error(
            f"[slurm] partition: there is no {name!r} here; {advice}there are: {', '.join(known)}",
            "set partition to one of these",
        )
        return
    if not partition.is_up:
        yield error(
            f"[slurm] partition: {name!r} is down and starts no job",
            "use another partition, or ask when this one is up",
        )
    qos_in_force = list_qos(spec, accounting, partition) if accounting else []
    lifted = set(chain.from_iterable(qos.flags for qos in qos_in_force))
    most = partition.nodes
    if partition.max_nodes is not None and "PartitionMaxNodes" not in lifted:
        most = min(most, partition.max_nodes)
    if spec.nodes > most:
        yield error(
            f"[slurm] nodes = {spec.nodes}: partition {name!r} lets a job have {most}",
            "set fewer nodes, or use another partition",
        )
    minutes, allowed = parse_slurm_minutes(spec.time_limit), partition.max_minutes
    if minutes is not None and allowed is not None and minutes > allowed and "PartitionTimeLimit" not in lifted:
        yield error(
            f"[slurm] time_limit = {spec.time_limit}: partition {name!r} allows at most {as_slurm(allowed)}",
            "set a shorter time_limit and more tasks",
        )


def as_slurm(minutes: int) -> str:
    """Return a time limit in Slurm's notation."""
    days, rest = divmod(minutes, 1440)
    clock = f"{rest // 60:02}:{rest % 60:02}:00"
    return f"{days}-{clock}" if days else clock


def array_size(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    tasks = request.spec.tasks
    if tasks < 1:
        yield error(f"[slurm] tasks = {tasks}: at least 1 is needed", "set the number of tasks to queue")
    if facts.cluster and tasks > (most := facts.cluster.limits.max_array_size - 1):
        yield error(
            f"[slurm] tasks = {tasks}: this Slurm takes {most} in one array at most",
            "set fewer tasks now, and add tasks later with launch --after",
        )


def constraint(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Slurm refuses a feature that no node has. In `a|b` one of the features is enough."""
    wanted = request.spec.constraint
    known = facts.cluster.features if facts.cluster else frozenset()
    if not wanted or not known:
        return
    alternatives = [set(FEATURE.findall(COUNT.sub("", part))) for part in wanted.split("|")]
    missing = [sorted(names - known) for names in alternatives]
    if not any(missing):
        return
    names = ", ".join(sorted(set(chain.from_iterable(missing))))
    near = get_close_matches(names, known, 1)
    advice = f"did you mean {near[0]!r}? " if near else ""
    is_certain = all(missing) and not set("!()").intersection(wanted)
    yield (error if is_certain else warning)(
        f"[slurm] constraint = {wanted}: no node has {names}; {advice}there are: {', '.join(sorted(known))}",
        "use a feature that nodes have: sinfo --Format=NodeList,Features",
    )


def exclude(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    if facts.cluster is None:
        return
    spec = request.spec
    all_nodes, excluded = union(node.name for node in facts.cluster.nodes), nodeset(spec.exclude)
    left = len(all_nodes - excluded)
    if unknown := excluded - all_nodes:
        yield error(f"[slurm] exclude: no such nodes: {unknown}", "correct the names")
    elif excluded and left < spec.nodes:
        yield error(
            f"[slurm] exclude: with {excluded} excluded {left} nodes are left, and the train needs {spec.nodes}",
            "exclude fewer nodes: Slurm accepts such a list and never starts the job",
        )


def in_service(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Count the nodes of the train's partitions, without the nodes that the train excludes."""
    if facts.cluster is None or not facts.cluster.members:
        return
    excluded = nodeset(request.spec.exclude)
    usable = set(facts.cluster.members) - set(excluded)
    nodes = [node for node in facts.cluster.nodes if node.name in usable]
    out = [node.name for node in nodes if OUT_OF_SERVICE.intersection(node.state.rstrip("*").split("+"))]
    left = len(nodes) - len(out)
    if left < request.spec.nodes <= len(nodes):
        yield warning(
            f"[slurm] nodes = {request.spec.nodes}: of {len(nodes)} usable nodes {left} are in service;"
            f" out of service are {fold(out)}",
            "the train waits for more nodes: opsctl nodes shows why they are out of service",
        )
    elif request.has_gpus and request.spec.nodes <= left < request.spec.nodes * (1 + MIN_SPARE_SHARE):
        yield note(
            f"[slurm] nodes = {request.spec.nodes}: {left} are in service, so {left - request.spec.nodes} are spare",
            "plan 5 to 10 % spare nodes on your own cluster: opsctl plan spares",
        )


def after(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Slurm treats a dependency on an unknown job as fulfilled, and starts the train at once."""
    job_id = request.spec.after
    if not job_id or facts.cluster is None:
        return
    known = {job.id for job in facts.cluster.jobs} | {job.array for job in facts.cluster.jobs}
    if job_id.partition("_")[0] not in known:
        yield error(
            f"--after {job_id}: no such job in the queue, so the train would start at once",
            "find the job with squeue, or leave --after out",
        )


def extra(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """Refuse options that opsctl sets itself, also abbreviated. Other options are allowed, such as a GPU type."""
    directives_of_opsctl = directives(replace(request.spec, extra=()))
    own_options = {line.partition("=")[0].removeprefix("--") for line in directives_of_opsctl} | OURS
    for line in request.spec.extra:
        for option in list_options(line):
            yield from _judge_option(option, own_options)


def _judge_option(option: BatchOption, own_options: Set[str]) -> Iterator[Problem]:
    if not option.text.startswith("-"):
        yield error(
            f"[slurm] extra: {option.text!r} is not an option, so sbatch refuses the script",
            "write each option as one text, with = before its value",
        )
        return
    for name in sorted(option.names & own_options):
        text = "opsctl sets" if option.is_exact and option.text == f"--{name}" else f"{option.text} is short for"
        end = " itself" if text == "opsctl sets" else ", which opsctl sets itself"
        yield error(f"[slurm] extra: {text} --{name}{end}", "use the setting in [slurm], if there is one")
        return
    if len(option.names) > 1:
        candidates = ", ".join(f"--{name}" for name in sorted(option.names))
        yield warning(f"[slurm] extra: {option.text} may stand for {candidates}", "write the full name")
