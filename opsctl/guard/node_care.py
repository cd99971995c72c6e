"""What the guard does about nodes: look at them, keep the train from them, have them taken out of service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.root_cause import Diagnosis
from opsctl.errors import InputError, OpsctlError, SchedulerError, Unreachable
from opsctl.guard.node_evidence import add_node_history
from opsctl.host.isolation import Failed, Isolation
from opsctl.launch.train_arrays import TrainArrays
from opsctl.model import Node
from opsctl.nodes.drain import Quarantine, keep_report, node_demand, report
from opsctl.nodes.drain_plan import NodePlan, Step, as_reason, busy, is_out, plan_drain, reason_for, words
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.health.node_checker import CheckedNodes, NodeChecker
from opsctl.nodes.health.node_state import Verdict
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.remote.fanout import Fanout
from opsctl.nodesets import expand, fold
from opsctl.ports import Clock, Scheduler
from opsctl.settings.health import HealthSettings

Reach = Callable[[Mapping[str, str], Collection[str]], Fanout]
"""The ways to nodes: for a node a running job of ours, and the nodes that are idle."""
SPARE_SECONDS = 5.0
"""What a look may take beyond its slowest question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedNodes:
    """What was done about suspects."""

    nodes: str
    """As Slurm folds them."""
    until: datetime
    is_excluded: bool
    """Whether the train is kept from them. If not, `done` says why."""
    done: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCare:
    """The site's nodes, as far as the guard may act on them."""

    site: HealthSettings
    history: NodeHistory
    exclusions: Exclusions
    reach: Reach
    clock: Clock
    jobs: Mapping[str, str] = field(default_factory=dict)
    """For nodes a running job of ours that has them."""

    def check(
        self, scheduler: Scheduler, nodes: Sequence[str], *, seconds: float, gpus: int = 0
    ) -> tuple[Verdict, ...]:
        """A verdict on each. What is late, or fails, has none. Raises nothing."""
        if not nodes:
            return ()
        checked = Isolation[str, CheckedNodes](self.clock, seconds + SPARE_SECONDS).run(
            {"nodes": lambda: self._looker(scheduler, seconds).check(nodes, gpus=gpus)}
        )["nodes"]
        return () if isinstance(checked, Failed) else checked.verdicts

    def _looker(self, scheduler: Scheduler, seconds: float) -> NodeChecker:
        site = self.site.model_copy(update={"section_seconds": min(seconds, self.site.section_seconds)})
        known = scheduler.nodes()
        idle = [node.name for node in known if words(node) == {"IDLE"} and node.name not in self.jobs]
        return NodeChecker(
            fanout=self.reach(self.jobs, idle), history=self.history, site=site, clock=self.clock, busy=busy(known)
        )

    def add_history(self, diagnosis: Diagnosis, *, allocated: str, at: datetime) -> Diagnosis:
        """`found`, and what was known of the nodes."""
        return add_node_history(diagnosis, self.history, allocated, at=at, days=self.site.lemon_days)

    def note_hang(self, train: str, attempt: str, node: str, at: datetime) -> tuple[str, ...]:
        """Remember the node whose ranks were the odd ones of a hang; what was done. That alone takes nothing out."""
        try:
            count = self.history.note_hang(node, f"{train}/{attempt}", at, days=self.site.lemon_days)
        except (OpsctlError, OSError) as error:
            return (f"could not record {node} as the odd one: {error}",)
        return (f"recorded {node} as the odd one of a hang, {count} in {self.site.lemon_days:g} days",)

    def remove_suspects(
        self, chain: TrainArrays, diagnosis: Diagnosis, suspects: Sequence[str], verdicts: Sequence[Verdict]
    ) -> RemovedNodes:
        """Keep the train from the suspects, if enough nodes remain for it, and have those drained in which a look has
        found the fault too. Doing it again changes nothing. Raises Unreachable."""
        nodes = chain.scheduler.nodes()
        until = self.clock.now() + timedelta(hours=self.site.exclude_hours)
        text = fold(suspects)
        try:
            out = self.out_of_service(nodes, suspects)
            chain.exclude(text, needed=node_demand(chain).nodes, until=until, out=out)
        except Unreachable:
            raise
        except (InputError, SchedulerError) as error:
            return RemovedNodes(nodes=text, until=until, is_excluded=False, done=(f"{text} was not excluded: {error}",))
        lines = [f"excluded {text} from what is queued and from later launches, until {until:%Y-%m-%d %H:%M} UTC"]
        bad = [verdict for verdict in verdicts if verdict.is_bad and verdict.node in suspects]
        reasons = {node: _reason(diagnosis, bad, node) for node in suspects}
        try:
            self.exclusions.add(list(reasons.items()), hours=self.site.exclude_hours)
        except (OpsctlError, OSError) as error:
            lines.append(f"later launches may have it again: {error}")
        lines += self._drain(chain.scheduler, nodes, bad, suspects, reasons)
        return RemovedNodes(nodes=text, until=until, is_excluded=True, done=tuple(lines))

    def out_of_service(self, nodes: Sequence[Node], suspects: Sequence[str]) -> frozenset[str]:
        """The other nodes that no job can have now."""
        return frozenset(node.name for node in nodes if is_out(node)) - set(suspects)

    def _drain(
        self,
        scheduler: Scheduler,
        nodes: Sequence[Node],
        bad: Sequence[Verdict],
        suspects: Sequence[str],
        reasons: Mapping[str, str],
    ) -> list[str]:
        acts = Quarantine(
            scheduler=scheduler, history=self.history, exclusions=self.exclusions, site=self.site, chains=()
        )
        ours = frozenset(exclusion.node for exclusion in self.exclusions.now())
        plan = plan_drain(bad, nodes, self.site, scores={}, excluded=ours - set(suspects))
        done = acts.drain(plan)
        lines = [
            f"drained {node_action.node}: {node_action.why}" for node_action in done if node_action.action == "drained"
        ]
        lines += [f"did not drain {skipped_node.node}: {skipped_node.why}" for skipped_node in plan.left]
        lines += [
            f"did not drain {node_action.node}: {node_action.why}"
            for node_action in done
            if node_action.action == "left"
        ]
        drained = {node_action.node for node_action in done if node_action.action == "drained"}
        if left := [node for node in nodes if node.name in suspects and node.name not in drained and not is_out(node)]:
            lines.append(self._report(left, reasons))
        return lines

    def _report(self, nodes: Sequence[Node], reasons: Mapping[str, str]) -> str:
        steps = tuple(Step(node=node.name, reason=reasons[node.name], seen=node) for node in nodes)
        records = [self.history.read(node.name) for node in nodes]
        text = fold(node.name for node in nodes)
        try:
            path = keep_report(self.history.site, report(NodePlan(steps=steps), records, self.clock.now()))
        except (OpsctlError, OSError) as error:
            return f"{text} is not drained, and the report for the administrators could not be written: {error}"
        return f"{text} is not drained; the report for the administrators is in {path}"


def find_suspects(diagnosis: Diagnosis, allocated: str, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Those of the suspects that were nodes of the attempt, by Slurm's names: logs have host names and addresses too.

    Where Slurm lost a node and no log tells which, it is the only one of the attempt that is down.
    """
    try:
        own = set(expand(allocated))
    except InputError:
        return ()
    shared = Counter(address for address, _ in {(node.address, node.name) for node in nodes})
    called = {node.address: node.name for node in nodes if node.name in own and shared[node.address] == 1}
    called |= {node.name: node.name for node in nodes if node.name in own}
    named = (called.get(suspect) or called.get(suspect.partition(".")[0], "") for suspect in diagnosis.suspects)
    if told := tuple(dict.fromkeys(name for name in named if name)):
        return told
    down = [node.name for node in nodes if node.name in own and words(node) & {"DOWN", "NOT_RESPONDING"}]
    return tuple(down) if diagnosis.kind is CauseKind.NODE and not diagnosis.suspects and len(down) == 1 else ()


def _reason(diagnosis: Diagnosis, bad: Sequence[Verdict], node: str) -> str:
    """By what the node itself says; if it says nothing, by what the log says of it."""
    verdict = next((each for each in bad if each.node == node and each.evidence), None)
    line = diagnosis.evidence[-1] if diagnosis.evidence else ""
    return (
        reason_for(verdict)
        if verdict
        else as_reason(f"{diagnosis.cause}: {diagnosis.says}{': ' if line else ''}{line}")
    )
