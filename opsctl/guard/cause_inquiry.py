"""The inquiry into the cause of an attempt's end: the diagnosis, the accused nodes, and the evidence against each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from opsctl.base.errors import OpsctlError, Unreachable
from opsctl.base.model import Job, Node
from opsctl.diagnosis.blame import Accusation, Ruling, judge_accusation, may_exclude
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.guard import attempt_record
from opsctl.guard.diagnose import diagnose, find_diagnosis, recall_diagnosis
from opsctl.guard.node_care import NodeCare, find_accused, resolve_nodes
from opsctl.guard.outcome import FinishedAttempt, needs_diagnosis
from opsctl.guard.repeated_blame import Blamed, count_repeats, list_allocations, read_blamed
from opsctl.launch.train_arrays import TrainArrays
from opsctl.nodes.health.node_state import Verdict
from opsctl.settings.loader import GuardSettings
from opsctl.state.events import Event
from opsctl.state.files import is_writable_by_others
from opsctl.state.run_dir import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseInquiry:
    """The cause of an end, found before anything is decided."""

    diagnosis: Diagnosis | None = None
    """None if the outcome needs no diagnosis."""
    accused: tuple[str, ...] = ()
    """Nodes of the attempt that the logs name."""
    suspects: tuple[str, ...] = ()
    """The accused nodes that the evidence convicts: the train should not get these nodes again."""
    acquitted: tuple[str, ...] = ()
    """Why each other accused node is not excluded."""
    verdicts: tuple[Verdict, ...] = ()


def inquire(
    chain: TrainArrays,
    rules: GuardSettings,
    attempt: Attempt,
    *,
    job: Job | None,
    care: NodeCare | None,
    decide: Callable[[Sequence[Event]], FinishedAttempt],
) -> CauseInquiry:
    """Return the diagnosis and the evidence. `decide` returns how the attempt ended, without its cause.

    A journalled diagnosis is recalled with its suspects: the evidence is weighed once. Raises Unreachable if Slurm does
    not list its nodes.
    """
    events = chain.journal.events()
    event = find_diagnosis(events, attempt.name)
    if event is not None:
        diagnosis, suspects = recall_diagnosis(event), event.suspects
        may_act = care is not None and may_exclude(diagnosis.kind)
        verdicts = care.check(chain.slurm, suspects, timeout_s=rules.node_check_seconds) if care and may_act else ()
        return CauseInquiry(diagnosis=diagnosis, suspects=suspects if may_act else (), verdicts=verdicts)
    ended = decide(events)
    if not needs_diagnosis(ended, rules):
        return CauseInquiry()
    allocated = _allocated_nodes(attempt, job)
    complete = partial(care.add_history, allocated=allocated, at=ended.ended) if care else _add_nothing
    diagnosis = diagnose(chain.journal, attempt, ended.outcome, timeout_s=rules.diagnosis_seconds, complete=complete)
    if care is None or not may_exclude(diagnosis.kind):
        return CauseInquiry(diagnosis=diagnosis)
    nodes = _list_nodes(chain, diagnosis) if allocated else []
    accused = find_accused(diagnosis, allocated, nodes)
    verdicts = care.check(chain.slurm, accused, timeout_s=rules.node_check_seconds)
    trial = _Trial(chain=chain, care=care, diagnosis=diagnosis, allocated=allocated, nodes=nodes, ended=ended)
    rulings = [trial.judge(node, verdicts) for node in accused]
    return CauseInquiry(
        diagnosis=diagnosis,
        accused=accused,
        suspects=tuple(ruling.node for ruling in rulings if ruling.is_convicted),
        acquitted=tuple(
            f"did not exclude {ruling.node}: {ruling.why}" for ruling in rulings if not ruling.is_convicted
        ),
        verdicts=verdicts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """The evidence against the accused nodes of one attempt."""

    chain: TrainArrays
    care: NodeCare
    diagnosis: Diagnosis
    allocated: str
    nodes: Sequence[Node]
    ended: FinishedAttempt

    def judge(self, node: str, verdicts: Sequence[Verdict]) -> Ruling:
        """Weigh the evidence against one accused node. The connection is tested only if the test can decide."""
        diagnosis = self.diagnosis
        voices = [voice for voice in resolve_nodes(diagnosis.voices, self.allocated, self.nodes) if voice != node]
        accusation = Accusation(
            node=node,
            verdict=next((verdict for verdict in verdicts if verdict.node == node), None),
            voices=len(voices),
            repeats=self._count_repeats(node),
        )
        ruling = judge_accusation(diagnosis.kind, diagnosis.cause, accusation)
        cut_off = replace(accusation, is_cut_off=True)
        if ruling.is_convicted or not judge_accusation(diagnosis.kind, diagnosis.cause, cut_off).is_convicted:
            return ruling
        is_cut_off = self.care.test_connection(self.nodes, node, voices)
        return judge_accusation(diagnosis.kind, diagnosis.cause, replace(accusation, is_cut_off=is_cut_off))

    def _count_repeats(self, node: str) -> int:
        since = self.ended.ended - timedelta(days=self.care.site.lemon_days)
        events = [event for event in self.chain.journal.events() if event.when >= since]
        own = Blamed(attempt=self.ended.attempt, cause=self.diagnosis.cause, nodes=(node,))
        return count_repeats(read_blamed(events), list_allocations(events), own, node, self.diagnosis.kind)


def _add_nothing(diagnosis: Diagnosis) -> Diagnosis:
    return diagnosis


def _allocated_nodes(attempt: Attempt, job: Job | None) -> str:
    start = attempt_record.read_start(attempt)
    if start:
        return start.nodes
    return job.nodes if job else ""


def _list_nodes(chain: TrainArrays, diagnosis: Diagnosis) -> list[Node]:
    if diagnosis.log and is_writable_by_others(Path(diagnosis.log)):
        return []  # anybody could have written the evidence
    try:
        return chain.slurm.nodes()
    except Unreachable:
        raise
    except OpsctlError:
        return []
