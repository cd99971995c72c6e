"""What would make Slurm refuse a train, or leave it waiting for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches

from opsctl.model import Accounting, JobSpec, Partition
from opsctl.nodesets import fold, nodeset, union
from opsctl.preflight.effective_limits import list_qos
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, note, warning
from opsctl.render import directives
from opsctl.units import parse_slurm_minutes

OURS = frozenset({"comment", "error", "open-mode", "output", "parsable", "requeue", "test-only", "wait", "wrap"})
"""sbatch options that opsctl sets itself, or that would keep it from learning what was submitted."""
SPARE = 0.05
OUT = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT"})
"""Parts of a node's state with which it gets no job. One that does not answer now (`*`) may do so in a moment."""


def partition(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Of several partitions one that fits is enough: Slurm starts the job in whichever of them can first."""
    if facts.cluster is None:
        return
    known = {each.name: each for each in facts.cluster.partitions}
    names = asked(request.spec, facts.cluster.partitions)
    if not names:
        yield error(
            f"[slurm] partition: none is given and this cluster has no default; there are: {', '.join(known)}",
            "name one",
        )
    judged = [list(_one_partition(request.spec, name, known, facts.cluster.accounting)) for name in names]
    if all(judged):
        yield from (problem for problems in judged for problem in problems)


def asked(spec: JobSpec, partitions: tuple[Partition, ...]) -> list[str]:
    """The partitions that the job may run in."""
    return (
        spec.partition.split(",")
        if spec.partition
        else [partition.name for partition in partitions if partition.is_default]
    )


def _one_partition(
    spec: JobSpec, name: str, known: dict[str, Partition], accounting: Accounting | None
) -> Iterator[Problem]:
    partition = known.get(name)
    if partition is None:
        near = get_close_matches(name, known, 1)
        advice = f"did you mean {near[0]!r}? " if near else ""
        yield error(
            f"[slurm] partition: there is no {name!r} here; {advice}there are: {', '.join(known)}", "name one of these"
        )
        return
    if not partition.is_up:
        yield error(f"[slurm] partition: {name!r} is down: it starts nothing", "take another, or ask when it is up")
    lifted = (
        {flag for list_qos in list_qos(spec, accounting, partition) for flag in list_qos.flags} if accounting else set()
    )
    most = partition.nodes
    if partition.max_nodes is not None and "PartitionMaxNodes" not in lifted:
        most = min(most, partition.max_nodes)
    if spec.nodes > most:
        yield error(
            f"[slurm] nodes = {spec.nodes}: partition {name!r} lets a job have {most}", "fewer nodes, or another one"
        )
    minutes, allowed = parse_slurm_minutes(spec.time_limit), partition.max_minutes
    if minutes is not None and allowed is not None and minutes > allowed and "PartitionTimeLimit" not in lifted:
        yield error(
            f"[slurm] time_limit = {spec.time_limit}: partition {name!r} allows {as_slurm(allowed)} at the most",
            "a shorter time_limit, and more tasks",
        )


def as_slurm(minutes: int) -> str:
    """A time limit as Slurm writes it."""
    days, rest = divmod(minutes, 1440)
    clock = f"{rest // 60:02}:{rest % 60:02}:00"
    return f"{days}-{clock}" if days else clock


def array_size(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    tasks = request.spec.tasks
    if tasks < 1:
        yield error(f"[slurm] tasks = {tasks}: needs at least 1", "say how many tasks to queue")
    if facts.cluster and tasks > (most := facts.cluster.limits.max_array_size - 1):
        yield error(
            f"[slurm] tasks = {tasks}: this Slurm takes {most} in one array at the most",
            "fewer now; later more behind them, with launch --after",
        )


def exclude(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    if facts.cluster is None:
        return
    spec = request.spec
    every, excluded = union(node.name for node in facts.cluster.nodes), nodeset(spec.exclude)
    left = len(every - excluded)
    if unknown := excluded - every:
        yield error(f"[slurm] exclude: there are no such nodes here: {unknown}", "correct the names")
    elif excluded and left < spec.nodes:
        yield error(
            f"[slurm] exclude: all nodes but {excluded} are {left}, and the train needs {spec.nodes}",
            "exclude fewer: Slurm takes such a list, and never starts the job",
        )


def in_service(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Counted are the nodes of the partitions that are asked for, less what the train excludes."""
    if facts.cluster is None or not facts.cluster.members:
        return
    excluded = nodeset(request.spec.exclude)
    wanted = [node for node in facts.cluster.nodes if node.name in facts.cluster.members and node.name not in excluded]
    out = [node.name for node in wanted if OUT.intersection(node.state.rstrip("*").split("+"))]
    left = len(wanted) - len(out)
    if left < request.spec.nodes <= len(wanted):
        yield warning(
            f"[slurm] nodes = {request.spec.nodes}: of {len(wanted)} nodes that it could get {left} are in service;"
            f" out are {fold(out)}",
            "it waits until enough are back: opsctl nodes says why they are out",
        )
    elif request.has_gpus and request.spec.nodes <= left < request.spec.nodes * (1 + SPARE):
        yield note(
            f"[slurm] nodes = {request.spec.nodes}: {left} are in service, so {left - request.spec.nodes} are spare",
            "5 to 10 % spare nodes, where they are yours alone: opsctl plan spares",
        )


def after(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Slurm takes a dependency on a job that it does not know as fulfilled, and starts at once."""
    given = request.spec.after
    if not given or facts.cluster is None:
        return
    known = {job.id for job in facts.cluster.jobs} | {job.array for job in facts.cluster.jobs}
    if given.partition("_")[0] not in known:
        yield error(
            f"--after {given}: no such job is in the queue, so the train would not wait for anything",
            "leave --after out, or look the job up with squeue",
        )


def extra(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """What opsctl says itself is not said twice; what the train leaves open may be said here, such as a GPU's type."""
    said = {_option(directive) for directive in directives(replace(request.spec, extra=()))} | OURS
    for each in request.spec.extra:
        if (name := _option(each)) in said:
            yield error(f"[slurm] extra: --{name} is opsctl's own to set", "use the setting of [slurm], if it has one")


def _option(text: str) -> str:
    return text.partition("=")[0].removeprefix("--")
