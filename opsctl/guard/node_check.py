"""The look at an attempt's nodes before its trainer starts: a node that is faulty can be refused. Unknown never is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from opsctl.diagnosis.causes import CauseKind, Scope
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.errors import InputError
from opsctl.guard.diagnose import describe_diagnosis, to_event
from opsctl.guard.node_care import NodeCare
from opsctl.launch.train_arrays import TrainArrays
from opsctl.nodes.drain_plan import cap_of
from opsctl.nodes.health.node_state import Health, Verdict
from opsctl.nodesets import fold
from opsctl.settings.loader import GuardSettings, TrainSettings, parse, read_toml
from opsctl.state.journal import EventKind
from opsctl.state.run_dir import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """What a look came to. `refused` is why the body is not to start; `kept` why it starts on a faulty node."""

    refused: str = ""
    kept: str = ""


def check_nodes(
    chain: TrainArrays, care: NodeCare, rules: GuardSettings, attempt: Attempt, nodes: Sequence[str]
) -> NodeCheck:
    """Look at these nodes, and write down what is found to be faulty. Takes little longer than `node_check_seconds`.

    A faulty node is refused only if something is queued that can go on without it. Raises OpsctlError.
    """
    config = parse(TrainSettings, read_toml(chain.run.config), str(chain.run.config))
    gpus = config.slurm.gpus_per_node
    if not (gpus if rules.node_check is None else rules.node_check):
        return NodeCheck()
    verdicts = care.check(chain.scheduler, nodes, seconds=rules.node_check_seconds, gpus=gpus)
    faulty = [verdict for verdict in verdicts if verdict.health is Health.FAULTY and verdict.evidence]
    if not faulty:
        return NodeCheck()
    diagnosis, names = _as_cause(attempt, faulty), [verdict.node for verdict in faulty]
    if why := _cannot_spare(chain, care, names, needed=config.slurm.nodes):
        until = care.clock.now() + timedelta(hours=care.site.exclude_hours)
        chain.note(
            EventKind.QUARANTINED,
            attempt=attempt.name,
            nodes=fold(names),
            until=until.isoformat(),
            excluded=False,
            why=describe_diagnosis(diagnosis),
            done=[f"started on {fold(names)} all the same: {why}"],
        )
        return NodeCheck(kept=f"{fold(names)} is faulty ({describe_diagnosis(diagnosis)}), but {why}")
    chain.note(EventKind.DIAGNOSED, **to_event(diagnosis, names))
    return NodeCheck(refused=f"{fold(names)} is faulty: {describe_diagnosis(diagnosis)}")


def _as_cause(attempt: Attempt, faulty: Sequence[Verdict]) -> Diagnosis:
    worst = faulty[0].evidence[0]
    lines = [f"{verdict.node}: {result.check}: {result.evidence}" for verdict in faulty for result in verdict.evidence]
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


def _cannot_spare(chain: TrainArrays, care: NodeCare, names: Sequence[str], *, needed: int) -> str:
    """Why the train must do with these nodes; empty if it can do without."""
    nodes = chain.scheduler.nodes()
    cap = cap_of(care.site, len(nodes))
    if len(names) > cap:
        return f"{len(names)} nodes at once are more than the {cap} that opsctl takes out"
    if not chain.check().waiting:
        return "nothing is queued that could go on without it"
    try:
        chain.check_spare(fold(names), needed=needed, out=care.out_of_service(nodes, names))
    except InputError as error:
        return error.message
    return ""
