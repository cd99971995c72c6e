"""Carry out node plans: drain, undrain, and exclude nodes that opsctl may not drain from this site's trains."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.base.errors import NotAllowed, OpsctlError, RunDirError, SlurmError, Unreachable
from opsctl.base.model import Node
from opsctl.base.nodesets import fold
from opsctl.launch.train_arrays import TrainArrays, excluded_until
from opsctl.nodes.drain_plan import NodePlan, Step, has_changed, is_ours
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.history import Incident, NodeHistory, NodeRecord
from opsctl.settings.health import HealthSettings
from opsctl.settings.loader import TrainSettings, parse, read_toml
from opsctl.slurm.commands import Slurm
from opsctl.state.lease import LeaseBusy, lease
from opsctl.state.site_dir import SiteDir

MAX_REPORTED_INCIDENTS = 5
"""Newest incidents of a node that the administrators' report shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAction:
    """The result of one step."""

    node: str
    action: str
    """`drained`, `undrained`, `excluded`, `left`."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Takes nodes out of service and puts them back."""

    slurm: Slurm
    history: NodeHistory
    exclusions: Exclusions
    site: HealthSettings
    all_arrays: Sequence[TrainArrays]
    """The caller's own trains."""

    def drain(self, plan: NodePlan) -> list[NodeAction]:
        """Drain each node that is still as it was when the plan was made.

        After the first drain that Slurm does not allow, the rest is excluded from the caller's trains instead. Raises
        Unreachable; the remaining steps are then not carried out.
        """
        if plan.steps or plan.left:
            self._note_earlier_drains()
        if self.site.drain == "never":
            return self._exclude(plan.steps)
        actions: list[NodeAction] = []
        for index, step in enumerate(plan.steps):
            try:
                with self._lock():
                    action = self._drain_node(step, plan.cap)
            except NotAllowed:
                return actions + self._exclude(plan.steps[index:])
            actions.append(action)
            if action.action == "drained":
                with suppress(OpsctlError, OSError):  # an unwritable history must not stop the drains
                    self.history.note_drained(step.node, self.history.clock.now(), by=self._find_owner(step))
        return actions

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Serialize drains of several opsctl processes, so that together they keep to the cap.

        A user who may not write to the site's directory drains without the lock.
        """
        with ExitStack() as stack:
            with suppress(OpsctlError):
                stack.enter_context(lease(self.history.site.nodes, self.history.clock))
            yield

    def _drain_node(self, step: Step, cap: int) -> NodeAction:
        """Re-read the node and drain it. Raises NotAllowed, Unreachable."""
        if why := self._why_outdated(step, self.slurm.nodes(), cap):
            return NodeAction(node=step.node, action="left", why=why)
        with suppress(OpsctlError, OSError):  # as above
            self.history.note_reason(step.node, step.reason)
        try:
            self.slurm.drain(step.node, step.reason)
        except (NotAllowed, Unreachable):
            raise
        except SlurmError as error:
            return NodeAction(node=step.node, action="left", why=error.message)
        return NodeAction(node=step.node, action="drained", why=step.reason)

    def _find_owner(self, step: Step) -> str:
        """Return the user whom Slurm reports for the reason that was just written; empty if another reason is there."""
        reasons = self.slurm.reasons()
        return next((reason.by for reason in reasons if (reason.node, reason.text) == (step.node, step.reason)), "")

    def undrain(self, plan: NodePlan) -> list[NodeAction]:
        """Put each node back that is still as it was when the plan was made. Raises Unreachable."""
        return [self._undrain_node(step) for step in plan.steps]

    def _undrain_node(self, step: Step) -> NodeAction:
        """Re-read the node and put the node back into service. Raises Unreachable."""
        node = next((node for node in self.slurm.nodes() if node.name == step.node), None)
        if why := has_changed(step, node):
            return NodeAction(node=step.node, action="left", why=why)
        # Exclusions end first: once the node is back, no later command would end them.
        with suppress(OpsctlError, OSError):  # an unwritable history must not stop the undrain
            self._clear(step.node)
        try:
            self.slurm.resume(step.node)
        except Unreachable:
            raise
        except SlurmError as error:
            return NodeAction(node=step.node, action="left", why=error.message)
        return NodeAction(node=step.node, action="undrained", why=step.reason)

    def _clear(self, node: str) -> None:
        """Record that a node is back, and end its exclusions."""
        self.history.note_cleared(node)
        self.exclusions.remove([node])
        for arrays in self.all_arrays:
            if node in excluded_until(arrays.journal.events()):
                arrays.readmit(node)

    def _note_earlier_drains(self) -> None:
        """Record drains of opsctl processes that were interrupted before they could record the drains."""
        with suppress(SlurmError, RunDirError, LeaseBusy):
            for reason in self.slurm.reasons():
                record = self.history.read(reason.node)
                if reason.at and reason.text == record.drain_reason and not record.is_reboot:
                    self.history.note_drained(reason.node, reason.at, by=reason.by)

    def _why_outdated(self, step: Step, nodes: Sequence[Node], cap: int) -> str:
        node = next((node for node in nodes if node.name == step.node), None)
        if why := has_changed(step, node):
            return why
        out = sum(is_ours(node) for node in nodes)
        if out < cap:
            return ""
        return f"opsctl has {out} node{'s' * (out != 1)} out of service already; the cap is {cap}"

    def _exclude(self, steps: Sequence[Step]) -> list[NodeAction]:
        """Exclude these nodes from the queued tasks of the caller's trains and from later launches."""
        if not steps:
            return []
        nodes = fold(step.node for step in steps)
        until = self.exclusions.clock.now() + timedelta(hours=self.site.exclude_hours)
        # First what keeps queued tasks away: the list of exclusions may be one that cannot be read.
        notes = [self._exclude_from(arrays, nodes, until) for arrays in self.all_arrays]
        self.exclusions.add([(step.node, step.reason) for step in steps], hours=self.site.exclude_hours)
        why = "; ".join(["from later launches", *(note for note in notes if note)])
        return [NodeAction(node=step.node, action="excluded", why=why) for step in steps]

    def _exclude_from(self, arrays: TrainArrays, nodes: str, until: datetime) -> str:
        """Exclude nodes from a train's queued tasks; return a note, empty without queued tasks. Raises Unreachable."""
        try:
            if not arrays.check().waiting:
                return ""
            arrays.exclude(nodes, needed=count_needed_nodes(arrays), until=until)
        except Unreachable:
            raise
        except (OpsctlError, OSError) as error:
            return f"not from {arrays.run.name}: {error}"
        return f"from {arrays.run.name}'s queued tasks"


def keep_report(site: SiteDir, text: str) -> Path:
    """Write the report from which the next mail to the administrators is made. Raises RunDirError."""
    path = site.nodes / "report.txt"
    site.create()
    site.write(path, text)
    return path


def count_needed_nodes(arrays: TrainArrays) -> int:
    """Return how many nodes a train needs. Raises ConfigError."""
    return parse(TrainSettings, read_toml(arrays.run.config), str(arrays.run.config)).slurm.nodes


def report(plan: NodePlan, records: Iterable[NodeRecord], now: datetime) -> str:
    """Render the administrators' report: the faulty nodes and GPUs, with the evidence. Times are UTC."""
    record_by_node = {record.node: record for record in records}
    lines = [f"Nodes that need attention, {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC", ""]
    for step in plan.steps:
        lines += [f"{step.node} ({step.snapshot.state})", f"  {step.reason}"]
        record = record_by_node.get(step.node)
        if record is not None:
            lines += [_render_incident(incident) for incident in record.incidents[-MAX_REPORTED_INCIDENTS:]]
        lines.append("")
    return "\n".join(lines)


def _render_incident(incident: Incident) -> str:
    at = datetime.fromtimestamp(incident.last, UTC)
    gpu = f" on {incident.gpu} (serial {incident.serial or 'unknown'})" if incident.gpu else ""
    return f"  {at:%Y-%m-%d %H:%M} {incident.check}{gpu}, {incident.count} x: {incident.evidence}"
