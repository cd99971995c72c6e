"""Check nodes: gather the data of every node once, judge the data, store the results."""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from opsctl.base.ports import Clock
from opsctl.host.isolation import Failed, Isolation
from opsctl.nodes.health.node_state import CheckInput, NodeBaseline, NodeSnapshot, Usual, Verdict
from opsctl.nodes.health.snapshot import FioScan, compute_timeout_s, parse, render_script
from opsctl.nodes.health.usual_hardware import MEMORY, MIN_AGREEING_NODES, find_usual_by_node, measure, name_kind
from opsctl.nodes.health.verdict import add_usual_versions, judge
from opsctl.nodes.history import NodeHistory, NodeRecord
from opsctl.nodes.node_score import find_flaky_gpus
from opsctl.nodes.remote.fanout import Fanout
from opsctl.settings.health import HealthSettings
from opsctl.slurm.parse_output import NO_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedNodes:
    """The results of one health check of several nodes. Mappings are by node name."""

    verdicts: tuple[Verdict, ...]
    snapshots: Mapping[str, NodeSnapshot]
    records: Mapping[str, NodeRecord]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChecker:
    fanout: Fanout
    history: NodeHistory
    site: HealthSettings
    clock: Clock
    busy: Mapping[str, bool]
    """Whether Slurm has a job on the node; nodes of unknown state are missing."""
    slurm_kinds: Mapping[str, str] = field(default_factory=dict)
    """CPUs, memory and gres that Slurm's configuration gives a node, as text. Missing nodes are not compared."""
    answer_s: float | None = None
    """How long to wait for answers; None: as long as the sections may take."""
    save_s: float = 600
    """How long to wait until the results are stored. Thousands of nodes have as many files."""

    def check(self, nodes: Sequence[str], *, dcgm: int = 0, fio: str = "", gpus: int = 0) -> CheckedNodes:
        """Check these nodes and store the results. Raises nothing.

        `dcgm` is the level of DCGM's diagnostic, 0 for none; `fio` is a directory to measure; `gpus` is the expected
        number of GPUs of a node, which applies where the site sets none.
        """
        snapshots = self.gather(nodes, dcgm=dcgm, fio=fio)
        site = self.site
        if gpus and not site.gpus_per_node:
            site = site.model_copy(update={"gpus_per_node": gpus})
        flaky_gpus = find_flaky_gpus(
            self.history.cards(), self.clock.now(), days=site.flaky_days, limit=site.flaky_score
        )
        priors = {node: self.history.read(node) for node in snapshots}
        kinds = {node: name_kind(snapshot, self.slurm_kinds.get(node, "")) for node, snapshot in snapshots.items()}
        usual = self._find_usual(snapshots, kinds, site.ib_ignore)
        verdicts = judge_all(snapshots, priors, site, self.busy, flaky_gpus, usual=usual)
        checks = [(snapshots[verdict.node], verdict) for verdict in verdicts]
        saved = Isolation[str, list[NodeRecord]](self.clock, self.save_s).run(
            {"history": lambda: self.history.save(checks, baseline_hours=self.site.xid_hours, kinds=kinds)}
        )["history"]
        return CheckedNodes(
            verdicts=tuple(verdicts),
            snapshots=snapshots,
            records=priors if isinstance(saved, Failed) else {record.node: record for record in saved},
            problems=(f"the history could not be written: {saved.why}",) if isinstance(saved, Failed) else (),
        )

    def _find_usual(
        self, snapshots: Mapping[str, NodeSnapshot], kinds: Mapping[str, str], ib_ignore: str
    ) -> dict[str, Usual]:
        """Return what the other nodes of each node's kind have, in this check or, if not in this check, before."""
        known = [(node, kinds[node], measure(snapshot, ib_ignore)) for node, snapshot in snapshots.items()]
        if any(kind and count <= MIN_AGREEING_NODES for kind, count in Counter(kinds.values()).items()):
            records = [record for record in self.history.all() if record.node in self.slurm_kinds]
            known += [(record.node, record.kind, record.hardware) for record in records if record.node not in kinds]
        members: dict[str, dict[str, dict[str, float]]] = {}
        for node, kind, values in known:
            # Without memory in Slurm's configuration, nodes with more memory may be of the same kind.
            comparable = {name: value for name, value in values.items() if name != MEMORY or NO_MEMORY not in kind}
            members.setdefault(kind, {})[node] = comparable
        members.pop("", None)
        return find_usual_by_node(members)

    def gather(self, nodes: Sequence[str], *, dcgm: int = 0, fio: str = "") -> dict[str, NodeSnapshot]:
        """Run the gathering script once on every node. Return the parsed answers by node. Raises nothing."""
        mark, site = f"@@{secrets.token_hex(8)}", self.site
        scan = FioScan(directory=fio, mib=site.fio_mib, timeout_s=site.fio_seconds) if fio else None
        script = render_script(mark, section_timeout_s=site.section_seconds, mounts=site.mounts, dcgm=dcgm, fio=scan)
        timeout = self.answer_s or compute_timeout_s(site.section_seconds, dcgm, scan)
        sent_at = self.clock.now()
        answers = self.fanout.run(nodes, ("sh", "-s"), timeout=timeout, stdin=script).values()
        answered_at = self.clock.now()
        return {answer.node: parse(answer, mark, sent_at=sent_at, answered_at=answered_at) for answer in answers}


def judge_all(
    snapshots: Mapping[str, NodeSnapshot],
    priors: Mapping[str, NodeBaseline],
    site: HealthSettings,
    busy: Mapping[str, bool],
    flaky_gpus: Mapping[str, str],
    *,
    usual: Mapping[str, Usual] | None = None,
) -> list[Verdict]:
    """Return the verdict on every node. Pure."""
    common = add_usual_versions(CheckInput(site=site.thresholds, flaky_gpus=dict(flaky_gpus)), snapshots.values())
    verdicts = []
    for node, snapshot in snapshots.items():
        check_input = replace(
            common,
            prior=priors.get(node, NodeBaseline()),
            busy=busy.get(node),
            usual=(usual or {}).get(node, Usual()),
        )
        verdicts.append(judge(snapshot, check_input))
    return verdicts
