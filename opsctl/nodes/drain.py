"""Carrying out plans for nodes: drain and resume where we may; else keep our trains from them, and tell the admins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.errors import NotAllowed, OpsctlError, RunDirError, SchedulerError, Unreachable
from opsctl.launch.train_arrays import TrainArrays, excluded_until
from opsctl.model import Node
from opsctl.nodes.drain_plan import PREFIX, NodeDemand, NodePlan, Step, has_changed, is_ours
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.history import NodeHistory, NodeRecord
from opsctl.nodesets import fold
from opsctl.ports import Scheduler
from opsctl.settings.health import HealthSettings
from opsctl.settings.loader import TrainSettings, parse, read_toml
from opsctl.state.lease import LeaseBusy, lease
from opsctl.state.site_dir import SiteDir


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAction:
    """What became of one step."""

    node: str
    action: str
    """`drained`, `undrained`, `excluded`, `left`."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    scheduler: Scheduler
    history: NodeHistory
    exclusions: Exclusions
    site: HealthSettings
    chains: Sequence[TrainArrays]
    """Of our own trains."""

    def drain(self, plan: NodePlan) -> list[NodeAction]:
        """Drain each node that is still as the plan saw it. Raises Unreachable, and then nothing more is done."""
        if plan.steps or plan.left:
            self._catch_up()
        done: list[NodeAction] = []
        forbidden: list[Step] = []
        for step in plan.steps:
            if forbidden or self.site.drain == "never":
                forbidden.append(step)
                continue
            try:
                with self._alone():
                    done.append(self._drained(step, plan.cap))
            except NotAllowed:
                forbidden.append(step)
                continue
            if done[-1].action == "drained":
                with suppress(OpsctlError, OSError):  # what cannot be remembered is no reason to stop
                    self.history.note_drained(step.node, self.history.clock.now())
        return done + self._exclude(forbidden)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Of two who drain at the same time, the second counts what the first has taken out, as far as both can write
        to the site's directory."""
        with ExitStack() as stack:
            with suppress(OpsctlError):
                stack.enter_context(lease(self.history.site.nodes, self.history.clock))
            yield

    def _drained(self, step: Step, cap: int) -> NodeAction:
        """Raises NotAllowed, Unreachable."""
        if why := self._too_late(step, self.scheduler.nodes(), cap):
            return NodeAction(node=step.node, action="left", why=why)
        try:
            self.scheduler.drain(step.node, step.reason)
        except (NotAllowed, Unreachable):
            raise
        except SchedulerError as error:
            return NodeAction(node=step.node, action="left", why=error.message)
        return NodeAction(node=step.node, action="drained", why=step.reason)

    def undrain(self, plan: NodePlan) -> list[NodeAction]:
        """Put each node back that is still as the plan saw it. Raises Unreachable."""
        done: list[NodeAction] = []
        for step in plan.steps:
            named = {node.name: node for node in self.scheduler.nodes()}
            if why := has_changed(step, named.get(step.node)):
                done.append(NodeAction(node=step.node, action="left", why=why))
                continue
            # Before it is back: afterwards nobody would think of it again.
            with suppress(OpsctlError, OSError):  # as above
                self._forgive(step.node)
            try:
                self.scheduler.resume(step.node)
            except Unreachable:
                raise
            except SchedulerError as error:
                done.append(NodeAction(node=step.node, action="left", why=error.message))
                continue
            done.append(NodeAction(node=step.node, action="undrained", why=step.reason))
        return done

    def _forgive(self, node: str) -> None:
        self.history.note_cleared(node)
        self.exclusions.remove([node])
        for chain in self.chains:
            if node in excluded_until(chain.journal.events()):
                chain.readmit(node)

    def _catch_up(self) -> None:
        """Note the drains of somebody who was cut off before they could note them."""
        with suppress(SchedulerError, RunDirError, LeaseBusy):
            for reason in self.scheduler.reasons():
                is_drain = reason.text.startswith(PREFIX) and not reason.text.startswith(f"{PREFIX}reboot:")
                if is_drain and reason.at:
                    self.history.note_drained(reason.node, reason.at)

    def _too_late(self, step: Step, nodes: Sequence[Node], cap: int) -> str:
        now = next((node for node in nodes if node.name == step.node), None)
        if why := has_changed(step, now):
            return why
        return f"opsctl has {cap} nodes out of service already" if sum(map(is_ours, nodes)) >= cap else ""

    def _exclude(self, steps: Sequence[Step]) -> list[NodeAction]:
        """Keep our trains from these nodes: what is queued, and what will be launched."""
        if not steps:
            return []
        nodes = fold(step.node for step in steps)
        self.exclusions.add([(step.node, step.reason) for step in steps], hours=self.site.exclude_hours)
        until = self.exclusions.clock.now() + timedelta(hours=self.site.exclude_hours)
        lines = [self._exclude_from(chain, nodes, until) for chain in self.chains]
        why = "; ".join(["later launches leave it out", *(each for each in lines if each)])
        return [NodeAction(node=step.node, action="excluded", why=why) for step in steps]

    def _exclude_from(self, chain: TrainArrays, nodes: str, until: datetime) -> str:
        try:
            if not chain.check().waiting:
                return ""
            chain.exclude(nodes, needed=node_demand(chain).nodes, until=until)
        except Unreachable:
            raise
        except (OpsctlError, OSError) as error:
            return f"{chain.run.name} keeps it: {error}"
        return f"{chain.run.name}'s queued tasks leave it out"


def keep_report(site: SiteDir, text: str) -> Path:
    """Lay it where the administrators' next mail is taken from. Raises RunDirError."""
    path = site.nodes / "report.txt"
    site.create()
    site.write(path, text)
    return path


def node_demand(chain: TrainArrays) -> NodeDemand:
    """What a train needs. Raises ConfigError."""
    config = parse(TrainSettings, read_toml(chain.run.config), str(chain.run.config))
    return NodeDemand(train=chain.run.name, nodes=config.slurm.nodes)


def report(plan: NodePlan, records: Iterable[NodeRecord], now: datetime) -> str:
    """What one sends to the administrators: which nodes, which cards, what proves it."""
    known = {record.node: record for record in records}
    lines = [f"Nodes that need a look, {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC", ""]
    for step in plan.steps:
        lines += [f"{step.node} ({step.snapshot.state})", f"  {step.reason}"]
        record = known.get(step.node)
        for incident in record.incidents[-5:] if record else ():
            moment = datetime.fromtimestamp(incident.last, UTC)
            card = f" on {incident.gpu} (serial {incident.serial or 'unknown'})" if incident.gpu else ""
            lines.append(
                f"  {moment:%Y-%m-%d %H:%M} {incident.check}{card}, seen {incident.count} x: {incident.evidence}"
            )
        lines.append("")
    return "\n".join(lines)
