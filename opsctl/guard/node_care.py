"""What the guard does about nodes: check, exclude and drain."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from opsctl.base.errors import InputError, OpsctlError, SlurmError, Unreachable
from opsctl.base.model import Node
from opsctl.base.nodesets import expand_if_list, fold
from opsctl.base.ports import Clock
from opsctl.diagnosis.blame import Proof, find_rule
from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.excerpt import find_matched_line
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.guard.node_evidence import add_node_history
from opsctl.host.isolation import Failed, Isolation
from opsctl.launch.train_arrays import TrainArrays
from opsctl.nodes.connection_test import CONNECT_S, START_S, ConnectionTest
from opsctl.nodes.drain import Quarantine, count_needed_nodes, keep_report, report
from opsctl.nodes.drain_plan import (
    NodePlan,
    Step,
    busy_by_node,
    format_reason,
    is_out,
    plan_drain,
    render_reason,
    state_words,
)
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.health.node_checker import CheckedNodes, NodeChecker
from opsctl.nodes.health.node_state import Health, Verdict
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.remote.fanout import Fanout
from opsctl.nodes.slow_nodes import compare_nodes, read_times
from opsctl.settings.health import HealthSettings, PolicySettings
from opsctl.slurm.commands import Slurm
from opsctl.state.events import ExclusionDecided
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.run_dir import Attempt

if TYPE_CHECKING:
    from opsctl.app import App

log = logging.getLogger(__name__)
Reach = Callable[[Mapping[str, str], Collection[str]], Fanout]
"""Builds the fan-out to nodes, from our running job on each node and the idle nodes."""
LOST_STATES = frozenset({"DOWN", "NOT_RESPONDING"})
"""Words of Slurm for the state of a node that it has lost."""
CONFIRM_CHECK_S = 60.0
"""How long the check of the nodes of a confirmed proposal may take."""
CHECK_SPARE_S = 5.0
"""How much longer than its slowest section a node may take to answer; then the time for the verdicts."""
SAVE_S = 2.0
"""How long a start waits until the results are stored: the rest is written while the trainer starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCare:
    """Access to the site's nodes, within the guard's rights."""

    site: HealthSettings
    history: NodeHistory
    exclusions: Exclusions
    reach: Reach
    clock: Clock
    jobs: Mapping[str, str] = field(default_factory=dict)
    """Our running job on each node."""
    policy: PolicySettings = field(default_factory=PolicySettings)
    connect_s: float = CONNECT_S
    """How long a connection test tries to connect."""

    @classmethod
    def of(cls, app: App, jobs: Mapping[str, str] | None = None) -> NodeCare:
        """Return the node care of a site. `jobs` are running jobs through which nodes are reached, by node."""
        return cls(
            jobs=jobs or {},
            site=app.site.health,
            policy=app.site.policy,
            history=app.history,
            exclusions=app.exclusions,
            clock=app.clock,
            reach=lambda jobs, idle: app.fanout(jobs=jobs, idle=idle),
        )

    def check(self, slurm: Slurm, nodes: Sequence[str], *, timeout_s: float, gpus: int = 0) -> tuple[Verdict, ...]:
        """Return the verdicts on `nodes`; none if Slurm or the history cannot be read in time. Raises nothing.

        A node that has not answered a little after `timeout_s` is unknown.
        """
        if not nodes:
            return ()
        checked = Isolation[str, CheckedNodes](self.clock, timeout_s + 2 * CHECK_SPARE_S).run(
            {"nodes": lambda: self._make_checker(slurm, timeout_s).check(nodes, gpus=gpus)}
        )["nodes"]
        return () if isinstance(checked, Failed) else checked.verdicts

    def test_collectives(self, slurm: Slurm, nodes: Sequence[str], *, python: str) -> list[Verdict]:
        """Return the verdicts of the collective test: each node alone, then all together. Raises Unreachable."""
        from opsctl.nodes.collective_test import all_reduce  # noqa: PLC0415 (for idle spare nodes only)

        test = all_reduce.CollectiveTest(
            fanout=self.reach(self.jobs, ()),
            options=all_reduce.TestOptions(python=python),
            clock=self.clock,
            addresses={node.name: node.address for node in slurm.nodes()},
            rng=random.SystemRandom(),
        )
        alone = test.test_alone(nodes)
        result = test.search([node for node, verdict in alone.items() if verdict.health is Health.HEALTHY])
        return all_reduce.judge_nodes(test, alone, result, {}, {})

    def _make_checker(self, slurm: Slurm, timeout_s: float) -> NodeChecker:
        site = self.site.model_copy(update={"section_seconds": min(timeout_s, self.site.section_seconds)})
        nodes = slurm.nodes()
        idle = [node.name for node in nodes if state_words(node) == {"IDLE"} and node.name not in self.jobs]
        return NodeChecker(
            fanout=self.reach(self.jobs, idle),
            history=self.history,
            site=site,
            clock=self.clock,
            busy=busy_by_node(nodes),
            slurm_kinds=_read_kinds(slurm),
            answer_s=timeout_s + CHECK_SPARE_S,
            save_s=SAVE_S,
        )

    def add_history(self, diagnosis: Diagnosis, *, allocated: str, at: datetime) -> Diagnosis:
        """Add the history of the blamed node, or of all `allocated` nodes, to the diagnosis."""
        return add_node_history(diagnosis, self.history, allocated, at=at, days=self.site.flaky_days)

    def test_connection(self, nodes: Sequence[Node], suspect: str, voices: Sequence[str]) -> bool | None:
        """Return whether `suspect` is cut off from the `voices`; None if the test shows nothing. Raises nothing."""
        idle = [node.name for node in nodes if state_words(node) == {"IDLE"} and node.name not in self.jobs]
        test = ConnectionTest(
            fanout=self.reach(self.jobs, idle),
            addresses={node.name: node.address for node in nodes},
            rng=random.SystemRandom(),
            connect_s=self.connect_s,
        )
        timeout_s = test.connect_s + START_S + CHECK_SPARE_S
        result = Isolation[str, bool | None](self.clock, timeout_s).run(
            {"pair": lambda: test.is_cut_off(suspect, voices)}
        )
        return None if isinstance(result["pair"], Failed) else result["pair"]

    def note_hang(self, train: str, attempt: str, node: str, at: datetime) -> tuple[str, ...]:
        """Record the node whose ranks were the odd ones in a hang; return what was done. Excludes nothing."""
        try:
            count = self.history.note_hang(node, f"{train}/{attempt}", at, days=self.site.flaky_days)
        except (OpsctlError, OSError) as error:
            return (f"could not record {node} as the odd one: {error}",)
        return (f"recorded {node} as the odd one of a hang, {count} in {self.site.flaky_days:g} days",)

    def note_named(self, train: str, diagnosis: Diagnosis, nodes: Sequence[str], at: datetime) -> None:
        """Record the nodes that the log of an attempt names. Raises nothing: the evidence of this attempt stands."""
        try:
            self.history.note_named(nodes, diagnosis.cause, f"{train}/{diagnosis.attempt}", at)
        except (OpsctlError, OSError) as error:
            log.warning("%s: the nodes that its log names could not be recorded: %s", diagnosis.attempt, error)

    def note_step_times(self, train: str, attempt: Attempt, nodes: str, at: datetime) -> None:
        """Record how fast the `nodes` of an attempt were against each other. Does nothing else; raises nothing."""
        ratios = compare_nodes(read_times(attempt.step_times, expand_if_list(nodes)), at)
        try:
            if ratios:
                self.history.note_step_times(f"{train}/{attempt.name}", ratios)
        except (OpsctlError, OSError) as error:
            log.warning("%s: the step times of its nodes could not be recorded: %s", attempt.name, error)

    def remove_suspects(
        self, arrays: TrainArrays, diagnosis: Diagnosis, suspects: Sequence[str], verdicts: Sequence[Verdict]
    ) -> ExclusionDecided:
        """Exclude the suspects if enough nodes remain, and drain those whose check confirmed the fault.

        Idempotent. Raises Unreachable.
        """
        bad = [verdict for verdict in verdicts if verdict.is_bad and verdict.node in suspects]
        decided = ExclusionDecided(
            attempt=diagnosis.attempt,
            nodes=fold(suspects),
            until=self.clock.now() + timedelta(hours=self.site.exclude_hours),
            excluded=False,
            reason=explain_diagnosis(diagnosis),
            done=(),
        )
        return self._remove(arrays, decided, {node: _reason(diagnosis, bad, node) for node in suspects}, bad)

    def confirm(self, arrays: TrainArrays, proposal: ExclusionDecided) -> ExclusionDecided:
        """Exclude or drain the nodes of a proposal, after a new check of them. Raises Unreachable."""
        care = replace(self, policy=self.policy.model_copy(update={"drain" if proposal.excluded else "exclude": "act"}))
        nodes = expand_if_list(proposal.to_drain or proposal.nodes)
        bad = [verdict for verdict in self.check(arrays.slurm, nodes, timeout_s=CONFIRM_CHECK_S) if verdict.is_bad]
        until = self.clock.now() + timedelta(hours=self.site.exclude_hours)
        proposal = replace(proposal, proposed=False, to_drain="", until=until)
        reasons = dict.fromkeys(nodes, format_reason(str(proposal.reason)))
        reasons |= {verdict.node: render_reason(verdict) for verdict in bad if verdict.evidence}
        return care._remove(arrays, proposal, reasons, bad)

    def _remove(
        self, arrays: TrainArrays, decided: ExclusionDecided, reasons: Mapping[str, str], bad: Sequence[Verdict]
    ) -> ExclusionDecided:
        nodes, suspects, text = arrays.slurm.nodes(), list(reasons), fold(reasons)
        if self.policy.exclude == "propose" and not decided.excluded:
            done = f"proposed to exclude {text}; to do it: opsctl release {arrays.run.name} --exclude {text}"
            return replace(decided, proposed=True, done=(done,))
        try:
            self.exclusions.check_daily_limit(suspects, self.site.exclude_per_day)
            needed, out = count_needed_nodes(arrays), self.out_of_service(nodes, suspects)
            arrays.check_spare(text, needed=needed, out=out)
            problem = self._keep_exclusions(reasons)
            arrays.exclude(text, needed=needed, until=decided.until, out=out)
        except Unreachable:
            raise
        except (InputError, SlurmError) as error:
            return replace(decided, done=(f"{text} was not excluded: {error}",))
        lines = [f"excluded {text} for queued tasks and later launches, until {decided.until:%Y-%m-%d %H:%M} UTC"]
        lines += [f"{text} is not excluded for later launches: {problem}"] if problem else []
        ours = frozenset(exclusion.node for exclusion in self.exclusions.shown())
        # Without the list of exclusions, nobody knows how many nodes may be drained.
        plan = plan_drain([] if problem else bad, nodes, self.site, scores={}, excluded=ours - set(suspects))
        if self.policy.drain == "propose" and plan.steps:
            to_drain = fold(step.node for step in plan.steps)
            lines.append(f"proposed to drain; to do it: opsctl drain-bad-nodes {to_drain}")
            return replace(decided, excluded=True, to_drain=to_drain, done=tuple(lines))
        lines += self._drain(arrays.slurm, nodes, plan, reasons)
        return replace(decided, excluded=True, done=tuple(lines))

    def _keep_exclusions(self, reasons: Mapping[str, str]) -> str:
        """Exclude nodes for later launches; return why they are not. Raises InputError beyond the limit of a day."""
        site = self.site
        try:
            self.exclusions.add(list(reasons.items()), hours=site.exclude_hours, per_day=site.exclude_per_day)
        except InputError:
            raise
        except (OpsctlError, OSError) as error:
            return str(error)
        return ""

    def out_of_service(self, nodes: Sequence[Node], suspects: Sequence[str]) -> frozenset[str]:
        """Return the nodes, other than suspects, on which no job can start now."""
        return frozenset(node.name for node in nodes if is_out(node)) - set(suspects)

    def _drain(self, slurm: Slurm, nodes: Sequence[Node], plan: NodePlan, reasons: Mapping[str, str]) -> list[str]:
        quarantine = Quarantine(
            slurm=slurm, history=self.history, exclusions=self.exclusions, site=self.site, all_arrays=()
        )
        actions = quarantine.drain(plan)
        drained = [action for action in actions if action.action == "drained"]
        left = [action for action in actions if action.action == "left"]
        lines = [f"drained {action.node}: {action.why}" for action in drained]
        lines += [f"did not drain {skipped.node}: {skipped.why}" for skipped in plan.left]
        lines += [f"did not drain {action.node}: {action.why}" for action in left]
        remaining = set(reasons) - {action.node for action in drained}
        in_service = [node for node in nodes if node.name in remaining and not is_out(node)]
        if in_service:
            lines.append(self._report(in_service, reasons))
        return lines

    def _report(self, nodes: Sequence[Node], reasons: Mapping[str, str]) -> str:
        steps = tuple(Step(node=node.name, reason=reasons[node.name], snapshot=node) for node in nodes)
        records = [self.history.read(node.name) for node in nodes]
        text = fold(node.name for node in nodes)
        try:
            path = keep_report(self.history.site, report(NodePlan(steps=steps), records, self.clock.now()))
        except (OpsctlError, OSError) as error:
            return f"{text} is not drained, and the report for the administrators could not be written: {error}"
        return f"{text} is not drained; the report for the administrators is in {path}"


def find_accused(diagnosis: Diagnosis, allocated: str, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return the nodes of the attempt that the diagnosis names, by Slurm's names.

    Of a node failure the log names one rank or none: the accused is the node of the attempt that is down, if
    there is exactly one.
    """
    accused = resolve_nodes(diagnosis.accused, allocated, nodes)
    asks_slurm = find_rule(diagnosis.kind, diagnosis.cause).proof is Proof.SLURM
    if diagnosis.kind is not CauseKind.NODE or (diagnosis.accused and not asks_slurm):
        return accused
    down = find_lost(allocated, nodes)
    return tuple(down) if len(down) == 1 else accused


def find_lost(allocated: str, nodes: Sequence[Node]) -> frozenset[str]:
    """Return the nodes of the attempt that Slurm reports as down or not responding."""
    own = frozenset(expand_if_list(allocated))
    return frozenset(node.name for node in nodes if node.name in own and state_words(node) & LOST_STATES)


def resolve_nodes(names: Sequence[str], allocated: str, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return Slurm's names of those `names` that are nodes of the attempt.

    Logs name host names and addresses as well.
    """
    own = frozenset(expand_if_list(allocated))
    shared = Counter(address for address, _ in {(node.address, node.name) for node in nodes})
    aliases = {node.address: node.name for node in nodes if node.name in own and shared[node.address] == 1}
    aliases |= {node.name: node.name for node in nodes if node.name in own}
    found = (aliases.get(name) or aliases.get(name.partition(".")[0], "") for name in names)
    return tuple(dict.fromkeys(filter(None, found)))


def explain_diagnosis(diagnosis: Diagnosis) -> Reason:
    """Return the diagnosis as a reason: `gpu: a GPU has fallen off the bus (node003, rank 5)`."""
    return Reason(
        kind=ReasonKind.DIAGNOSIS,
        attempt=diagnosis.attempt,
        cause_kind=diagnosis.kind.value,
        cause=diagnosis.cause,
        text=diagnosis.says,
        node=diagnosis.node,
        rank=diagnosis.rank,
    )


def _reason(diagnosis: Diagnosis, bad: Sequence[Verdict], node: str) -> str:
    """Return the drain reason: the evidence of the node's check, else the evidence of the logs."""
    verdict = next((verdict for verdict in bad if verdict.node == node and verdict.evidence), None)
    if verdict:
        return render_reason(verdict)
    line = find_matched_line(diagnosis.cause, diagnosis.evidence)
    return format_reason(f"{diagnosis.cause}: {diagnosis.says}{f': {line}' if line else ''}")


def _read_kinds(slurm: Slurm) -> dict[str, str]:
    """Return the kinds of nodes; without an answer of Slurm the nodes are not compared."""
    try:
        return slurm.kinds()
    except OpsctlError:
        return {}
