"""A look at nodes: ask each once, judge each purely, remember."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opsctl.errors import OpsctlError
from opsctl.nodes import history as remembered
from opsctl.nodes.health.node_state import CheckInput, NodeBaseline, NodeSnapshot, Verdict
from opsctl.nodes.health.snapshot import FioScan, longest, parse, script
from opsctl.nodes.health.verdict import judge, with_common
from opsctl.nodes.history import NodeHistory, NodeRecord
from opsctl.nodes.remote.fanout import Fanout
from opsctl.ports import Answer, Clock
from opsctl.settings.health import HealthSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedNodes:
    """What a look came to."""

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
    """Whether Slurm has a job there, for the nodes of which it says."""

    def check(self, nodes: Sequence[str], *, dcgm: int = 0, fio: str = "", gpus: int = 0) -> CheckedNodes:
        """Look at these nodes and remember what was seen; `gpus` on each, where somebody knows; `fio` is a directory to
        measure there. Raises nothing."""
        snapshots = self.gather(nodes, dcgm=dcgm, fio=fio)
        site = (
            self.site if self.site.gpus_per_node or not gpus else self.site.model_copy(update={"gpus_per_node": gpus})
        )
        cards = self.history.cards()
        lemons = remembered.find_lemons(
            cards, self.clock.now(), days=site.lemon_days, limit=site.lemon_score
        )  # fmt: skip
        priors = {node: self.history.read(node).prior for node in snapshots}
        verdicts = judge_all(snapshots, priors, site, self.busy, lemons)
        problems: tuple[str, ...] = ()
        try:
            records = self.history.save(
                [(snapshots[verdict.node], verdict) for verdict in verdicts], baseline_hours=site.xid_hours
            )  # fmt: skip
        except (OpsctlError, OSError) as error:
            problems = (f"the history could not be written: {error}",)
            records = [self.history.read(node) for node in snapshots]
        return CheckedNodes(
            verdicts=tuple(verdicts), snapshots=snapshots, records={record.node: record for record in records},
            problems=problems,
        )  # fmt: skip

    def gather(self, nodes: Sequence[str], *, dcgm: int = 0, fio: str = "") -> dict[str, NodeSnapshot]:
        """Ask each node once."""
        mark, site = f"@@{secrets.token_hex(8)}", self.site
        scan = FioScan(directory=fio, mib=site.fio_mib, seconds=site.fio_seconds) if fio else None
        text = script(mark, seconds=site.section_seconds, mounts=site.mounts, dcgm=dcgm, fio=scan)
        timeout = longest(site.section_seconds, dcgm, scan)
        snapshots: dict[str, NodeSnapshot] = {}

        def ask(node: str) -> Answer:
            moment = self.clock.now()
            answer = self.fanout.run_on(node, ("sh", "-s"), timeout=timeout, stdin=text)
            snapshots[node] = parse(replace(answer, node=node), mark, moment=moment, answered=self.clock.now())
            return answer

        self.fanout.map_nodes(nodes, ask)
        return {node: snapshots[node] for node in dict.fromkeys(nodes)}


def judge_all(
    snapshots: Mapping[str, NodeSnapshot],
    priors: Mapping[str, NodeBaseline],
    site: HealthSettings,
    busy: Mapping[str, bool],
    lemons: Mapping[str, str],
) -> list[Verdict]:
    """A verdict on each. Pure."""
    check_input = with_common(CheckInput(site=site, lemons=dict(lemons)), snapshots.values())
    return [
        judge(snapshot, replace(check_input, prior=priors.get(node, NodeBaseline()), busy=busy.get(node)))
        for node, snapshot in snapshots.items()
    ]  # fmt: skip
