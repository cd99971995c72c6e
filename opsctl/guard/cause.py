"""Why an attempt ended: the diagnosis, the accused nodes, and the evidence against each of them.

The diagnosis is made once and in bounded time, and journalled. An error in here makes the cause unknown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

from opsctl.base.errors import OpsctlError, Unreachable
from opsctl.base.model import JobState, Node
from opsctl.base.nodesets import fold
from opsctl.diagnosis.blame import Accusation, Ruling, judge_accusation, may_exclude
from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.diagnose_attempt import FinishedAttemptLogs, diagnose_attempt
from opsctl.diagnosis.exit_reasons import ExitReason, explain_by_outcome, explain_by_slurm, explain_by_trainer
from opsctl.diagnosis.hang_cause import diagnose_hang
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.guard.attempt_record import find_next_start, read_start
from opsctl.guard.dossier import Dossier
from opsctl.guard.end_record import Outcome
from opsctl.guard.node_care import NodeCare, find_accused, find_lost, resolve_nodes
from opsctl.guard.node_evidence import Blamed, count_repeats, list_allocations, read_blamed
from opsctl.guard.stop_request import read_stop_request
from opsctl.host.isolation import Failed, Isolation
from opsctl.launch.train_arrays import TrainArrays
from opsctl.nodes.health.node_state import Verdict
from opsctl.settings.loader import GuardSettings
from opsctl.state.events import AttemptStarted, Diagnosed, Event
from opsctl.state.files import is_writable_by_others
from opsctl.state.journal import Journal, replay
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.progress.train_settings import read_settings
from opsctl.trainer.contract import read_stop_reason

STATE_BY_OUTCOME = {
    Outcome.TIMED_OUT: JobState.TIMEOUT,
    Outcome.NODE_FAILED: JobState.NODE_FAIL,
    Outcome.CANCELLED: JobState.CANCELLED,
    Outcome.PREEMPTED: JobState.PREEMPTED,
}
"""Slurm's state for outcomes that were decided by this state."""
LOST_NODE = "node-failure"
"""The cause that Slurm's word and our own step have in common."""
CROWD_WINDOW, MIN_CROWD = timedelta(minutes=10), 3
"""The same line from so many nodes within this time has one cause, also in several trains."""
MIN_NAMED = 3
"""The failure follows a node that logs of two trains or more name in so many attempts, and no other node."""
FAILED = frozenset({Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.NODE_FAILED, Outcome.HUNG, Outcome.LOST})
MAX_EARLIER_ATTEMPTS = 3
"""Attempts before a failed one whose logs show what the train survives."""
LEFT = frozenset({Outcome.EXITED, Outcome.DEADLINE})


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCause:
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


def find_cause(
    arrays: TrainArrays, rules: GuardSettings, dossier: Dossier, outcome: Outcome, care: NodeCare | None
) -> FoundCause:
    """Return the diagnosis and the evidence against nodes.

    A journalled diagnosis is recalled with its suspects: the evidence is weighed once. Raises Unreachable if Slurm does
    not list its nodes.
    """
    event = find_diagnosis(arrays.journal.events(), dossier.attempt.name)
    if event is not None:
        diagnosis, suspects = recall_diagnosis(event), event.suspects
        may_act = care is not None and may_exclude(diagnosis.kind)
        verdicts = care.check(arrays.slurm, suspects, timeout_s=rules.node_check_seconds) if care and may_act else ()
        return FoundCause(diagnosis=diagnosis, suspects=suspects if may_act else (), verdicts=verdicts)
    if outcome is Outcome.NODE_FAILED and dossier.evidence.lost_nodes:
        return _blame_lost_nodes(dossier)
    if not needs_diagnosis(outcome, dossier, rules):
        return FoundCause()
    complete = partial(care.add_history, allocated=dossier.nodes, at=dossier.ended) if care else replace
    timeout_s = rules.diagnosis_seconds
    diagnosis = diagnose(arrays.journal, dossier.attempt, outcome, timeout_s=timeout_s, complete=complete)
    if care is None or not may_exclude(diagnosis.kind):
        return FoundCause(diagnosis=diagnosis)
    nodes = _list_nodes(arrays, diagnosis) if dossier.nodes else []
    accused = find_accused(diagnosis, dossier.nodes, nodes)
    if accused:
        care.note_named(arrays.run.name, diagnosis, accused, dossier.ended)
    verdicts = care.check(arrays.slurm, accused, timeout_s=rules.node_check_seconds)
    since = dossier.ended - timedelta(days=care.site.flaky_days)
    trial = _Trial(
        arrays=arrays,
        care=care,
        diagnosis=diagnosis,
        dossier=dossier,
        nodes=nodes,
        accused=accused,
        lost=find_lost(dossier.nodes, nodes),
        named=care.history.list_named(diagnosis.cause, since, dossier.ended) if accused else {},
    )
    rulings = [trial.judge(node, verdicts) for node in accused]
    return FoundCause(
        diagnosis=diagnosis,
        accused=accused,
        suspects=tuple(ruling.node for ruling in rulings if ruling.is_convicted),
        acquitted=_explain_acquittals(rulings),
        verdicts=verdicts,
    )


def _blame_lost_nodes(dossier: Dossier) -> FoundCause:
    """Return the cause of an attempt whose nodes the guard could not reach: nothing else is known to have failed.

    What other ranks print about it is its consequence.
    """
    lost, reason = dossier.evidence.lost_nodes, explain_by_slurm(JobState.NODE_FAIL)
    diagnosis = Diagnosis(
        kind=CauseKind.NODE,
        cause=LOST_NODE,
        says="the node did not answer a step of the job after a rank had failed",
        node=fold(lost),
        advice=reason.advice if reason else "",
        attempt=dossier.attempt.name,
    )
    return FoundCause(diagnosis=diagnosis, accused=lost, suspects=lost)


def _explain_acquittals(rulings: Sequence[Ruling]) -> tuple[str, ...]:
    """Return why accused nodes are not excluded, one line a reason."""
    nodes: dict[str, list[str]] = {}
    for ruling in rulings:
        if not ruling.is_convicted:
            nodes.setdefault(ruling.why, []).append(ruling.node)
    return tuple(f"did not exclude {fold(names)}: {why}" for why, names in nodes.items())


def needs_diagnosis(outcome: Outcome, dossier: Dossier, rules: GuardSettings) -> bool:
    """Return whether the logs may explain the end. A long attempt that exited with 0 needs no diagnosis."""
    is_short = dossier.minutes < rules.short_attempt_minutes and not dossier.progress.new_checkpoint
    return outcome in FAILED or (is_short and outcome in LEFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """The evidence against the accused nodes of one attempt."""

    arrays: TrainArrays
    care: NodeCare
    diagnosis: Diagnosis
    dossier: Dossier
    nodes: Sequence[Node]
    accused: tuple[str, ...]
    lost: frozenset[str]
    """The nodes of the attempt that Slurm reports as lost."""
    named: Mapping[str, Mapping[str, float]]
    """When logs named nodes for this cause, by node and attempt."""

    def judge(self, node: str, verdicts: Sequence[Verdict]) -> Ruling:
        """Weigh the evidence against one accused node. The connection is tested only if the test can decide."""
        diagnosis = self.diagnosis
        voices = [voice for voice in resolve_nodes(diagnosis.voices, self.dossier.nodes, self.nodes) if voice != node]
        since_s = (self.dossier.ended - CROWD_WINDOW).timestamp()
        nearby = sum(max(times.values()) >= since_s for times in self.named.values())
        accusation = Accusation(
            node=node,
            verdict=next((verdict for verdict in verdicts if verdict.node == node), None),
            is_lost=node in self.lost,
            crowd=max(len(self.accused), nearby if nearby >= MIN_CROWD else 1),
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
        since = self.dossier.ended - timedelta(days=self.care.site.flaky_days)
        events = [event for event in self.arrays.journal.events() if event.when >= since]
        own = Blamed(attempt=self.dossier.attempt.name, cause=self.diagnosis.cause, nodes=(node,))
        repeats = count_repeats(read_blamed(events), list_allocations(events), own, node, self.diagnosis.kind)
        attempts = self.named.get(node, {})
        is_flaky = len(self.named) == 1 and len({attempt.partition("/")[0] for attempt in attempts}) > 1
        return max(repeats, len(attempts) if is_flaky and len(attempts) >= MIN_NAMED else 1)


def _list_nodes(arrays: TrainArrays, diagnosis: Diagnosis) -> list[Node]:
    if diagnosis.log and is_writable_by_others(Path(diagnosis.log)):
        return []  # anybody could have written the evidence
    try:
        return arrays.slurm.nodes()
    except Unreachable:
        raise
    except OpsctlError:
        return []


def diagnose(
    journal: Journal,
    attempt: Attempt,
    outcome: Outcome,
    *,
    timeout_s: float,
    complete: Callable[[Diagnosis], Diagnosis],
) -> Diagnosis:
    """Return why `attempt` ended, within `timeout_s`. `complete` adds other evidence. Raises nothing."""
    call = partial(_diagnose, journal, attempt, outcome, complete)
    result = Isolation[str, Diagnosis](journal.clock, timeout_s).run({attempt.name: call})[attempt.name]
    if isinstance(result, Failed):
        says = f"the diagnosis failed: {result.why}"
        return Diagnosis(
            kind=CauseKind.UNKNOWN, cause="nothing", says=says, attempt=attempt.name, evidence=result.traceback
        )
    return result


def _diagnose(
    journal: Journal, attempt: Attempt, outcome: Outcome, complete: Callable[[Diagnosis], Diagnosis]
) -> Diagnosis:
    run, events = journal.run, journal.events()
    started = list(replay(events).started)
    position = started.index(attempt.name) if attempt.name in started else len(started)
    previous = find_diagnosis(events, started[position - 1]) if position else None
    stop, lost_node = read_stop_reason(attempt.stop_reason), outcome is Outcome.NODE_FAILED
    exit_reason = explain_by_trainer(stop, read_stop_request_text(attempt), lost_node=lost_node)
    exit_reason = exit_reason or explain_by_slurm(STATE_BY_OUTCOME.get(outcome, JobState.UNKNOWN))
    exit_reason = exit_reason or explain_by_outcome(outcome)
    find_cause = diagnose_hang if outcome is Outcome.HUNG else diagnose_attempt
    logs = load_attempt_logs(run, attempt.name, started, exit_reason)
    return complete(find_cause(run, logs, before=recall_diagnosis(previous) if previous else None))


def read_stop_request_text(attempt: Attempt) -> str:
    """Return the reason in the stop request; empty without a request."""
    stop_request = read_stop_request(attempt)
    return stop_request.why if stop_request else ""


def load_attempt_logs(
    run: RunDir, name: str, started: Sequence[str], exit_reason: ExitReason | None
) -> FinishedAttemptLogs:
    """Return where the logs of an attempt lie and what else is known. `started` lists all attempts in order."""
    start, next_start = read_start(run.attempt(name)), find_next_start(run, run.attempt(name), started)
    before = started[: started.index(name)][-MAX_EARLIER_ATTEMPTS:] if name in started else []
    begins = [earlier.main_log for attempt in before if (earlier := read_start(run.attempt(attempt)))]
    begins += [start.main_log] if start else []
    settings = read_settings(run)
    return FinishedAttemptLogs(
        attempt=name,
        begin=start.main_log if start else 0,
        end=(next_start.main_log or None) if next_start else None,
        earlier=tuple(pairwise(begins)),
        exit_reason=exit_reason,
        ranks=settings.world_size if settings else None,
    )


def to_event(
    diagnosis: Diagnosis, suspects: Sequence[str], accused: Sequence[str] = (), acquitted: Sequence[str] = ()
) -> Diagnosed:
    """Return the journal entry of a diagnosis."""
    return Diagnosed(
        attempt=diagnosis.attempt,
        cause_kind=diagnosis.kind.value,
        cause=diagnosis.cause,
        says=diagnosis.says,
        signature=diagnosis.signature,
        node=diagnosis.node,
        rank=diagnosis.rank,
        suspects=tuple(suspects),
        evidence=tuple(diagnosis.evidence[:20]),
        also=tuple(diagnosis.also),
        advice=diagnosis.advice,
        accused=tuple(accused),
        acquitted=tuple(acquitted),
    )


def find_diagnosis(events: Sequence[Event], attempt: str) -> Diagnosed | None:
    """Return the journalled diagnosis of an attempt, if there is one."""
    for event in reversed(events):
        if isinstance(event, Diagnosed | AttemptStarted) and event.attempt == attempt:
            # Earlier events belong to another attempt of this name: a killed controller reuses ids.
            return event if isinstance(event, Diagnosed) else None
    return None


def recall_diagnosis(event: Diagnosed) -> Diagnosis:
    """Read a diagnosis from its journal entry."""
    known = event.cause_kind in set(CauseKind)
    return Diagnosis(
        kind=CauseKind(event.cause_kind) if known else CauseKind.UNKNOWN,
        cause=event.cause,
        says=event.says,
        signature=event.signature,
        node=event.node,
        rank=event.rank,
        evidence=event.evidence,
        advice=event.advice,
        attempt=event.attempt,
    )
