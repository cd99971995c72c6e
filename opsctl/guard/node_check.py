"""The check of an attempt's nodes before its trainer starts. Faulty nodes are refused, unknown nodes never."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from opsctl.base.errors import InputError
from opsctl.base.nodesets import fold
from opsctl.diagnosis.causes import CauseKind, Scope
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.guard.cause import to_event
from opsctl.guard.node_care import NodeCare, explain_diagnosis
from opsctl.launch.train_arrays import TrainArrays
from opsctl.nodes.drain_plan import compute_cap
from opsctl.nodes.health.node_state import Health, Verdict
from opsctl.settings.loader import GuardSettings, TrainSettings, parse, read_toml
from opsctl.state.events import ExclusionDecided
from opsctl.state.run_dir import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """The result of the check. Both texts are empty if no node is faulty."""

    refusal: str = ""
    """Why the body is not to start."""
    concession: str = ""
    """Why the body starts on a faulty node."""


def check_nodes(
    arrays: TrainArrays,
    care: NodeCare,
    rules: GuardSettings,
    attempt: Attempt,
    nodes: Sequence[str],
    *,
    spares: Sequence[str] = (),
) -> NodeCheck:
    """Check `nodes`, and journal faulty nodes. Takes little longer than `node_check_seconds`.

    A faulty node is refused only if a healthy spare or the queued tasks can go on without it. Raises OpsctlError.
    """
    config = parse(TrainSettings, read_toml(arrays.run.config), str(arrays.run.config))
    gpus = config.slurm.gpus_per_node
    if not (gpus if rules.node_check is None else rules.node_check):
        return NodeCheck()
    verdicts = care.check(arrays.slurm, [*nodes, *spares], timeout_s=rules.node_check_seconds, gpus=gpus)
    faulty = list_faulty(verdicts)
    if not {verdict.node for verdict in faulty} & set(nodes):
        return NodeCheck()  # the watch over spares reports a faulty spare
    diagnosis = make_diagnosis(attempt, faulty)
    names = [verdict.node for verdict in faulty]
    has_spares = len(nodes) + len(spares) - len(names) >= config.slurm.nodes
    if not has_spares and (why := _find_need(arrays, care, names, needed=config.slurm.nodes)):
        until = care.clock.now() + timedelta(hours=care.site.exclude_hours)
        arrays.note(
            ExclusionDecided(
                attempt=attempt.name,
                nodes=fold(names),
                until=until,
                excluded=False,
                reason=explain_diagnosis(diagnosis),
                done=(f"started on {fold(names)} anyway: {why}",),
            )
        )
        return NodeCheck(concession=f"{fold(names)} is faulty ({explain_diagnosis(diagnosis)}), but {why}")
    arrays.note(to_event(diagnosis, names))
    return NodeCheck(refusal=f"{fold(names)} is faulty: {explain_diagnosis(diagnosis)}")


def list_faulty(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.health is Health.FAULTY and verdict.evidence]


def make_diagnosis(attempt: Attempt, faulty: Sequence[Verdict]) -> Diagnosis:
    worst = faulty[0].evidence[0]
    lines: list[str] = []
    for verdict in faulty:
        lines += [f"{verdict.node}: {result.check}: {result.evidence}" for result in verdict.evidence]
    diagnosis = Diagnosis(
        kind=CauseKind.NODE,
        cause=worst.check,
        says=f"{worst.check}: {worst.evidence}",
        scope=Scope.NODE,
        node=fold(verdict.node for verdict in faulty),
        evidence=tuple(lines),
        advice=worst.remedy,
        attempt=attempt.name,
    )
    return replace(diagnosis, kind=CauseKind.GPU, scope=Scope.GPU, gpu=worst.gpu) if worst.gpu else diagnosis


def _find_need(arrays: TrainArrays, care: NodeCare, names: Sequence[str], *, needed: int) -> str:
    """Return why the train needs these nodes; empty if it can run without them."""
    nodes = arrays.slurm.nodes()
    cap = compute_cap(care.site, len(nodes))
    if len(names) > cap:
        return f"{len(names)} faulty nodes at once exceed the limit of {cap}"
    if not arrays.check().waiting:
        return "no queued task could go on without it"
    if care.policy.exclude == "propose":
        return "policy.exclude leaves the exclusion to a person"
    try:
        care.exclusions.check_daily_limit(names, care.site.exclude_per_day)
        arrays.check_spare(fold(names), needed=needed, out=care.out_of_service(nodes, names))
    except InputError as error:
        return error.message
    return ""
