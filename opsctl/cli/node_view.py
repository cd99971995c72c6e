"""What the verbs on nodes share: the queue and the nodes asked once, which nodes are meant, and a look at them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import click

from opsctl.app import App
from opsctl.cli.output import complete_trains
from opsctl.errors import ConfigError, InputError, OpsctlError
from opsctl.launch.train_arrays import TrainArrays
from opsctl.model import Job, JobState, Node
from opsctl.nodes.drain_plan import busy_by_node, state_words
from opsctl.nodes.health.checks import CHECKS
from opsctl.nodes.health.node_checker import CheckedNodes, NodeChecker
from opsctl.nodes.remote.fanout import Fanout
from opsctl.nodesets import expand
from opsctl.settings.loader import TrainSettings, parse, read_toml
from opsctl.state.journal import actor
from opsctl.state.run_dir import all_trains, may_act

F = TypeVar("F", bound=Callable[..., Any])
train_option: Callable[[F], F] = click.option(
    "--train", default="", shell_complete=complete_trains, help="The nodes that this train runs on."
)
partition_option: Callable[[F], F] = click.option("--partition", default="", help="The nodes of this partition.")
all_option: Callable[[F], F] = click.option("--all", "every", is_flag=True, help="Every node that Slurm has.")
FREE = frozenset({"IDLE", "CLOUD", "DYNAMIC_NORM"})
"""The words of a node that a short job may have."""


@dataclass(frozen=True)
class NodeView:
    """The cluster as it was when this verb first asked."""

    app: App

    @cached_property
    def jobs(self) -> list[Job]:
        return self.app.scheduler.jobs()

    @cached_property
    def nodes(self) -> list[Node]:
        return self.app.scheduler.nodes()

    @cached_property
    def chains(self) -> list[TrainArrays]:
        """Those of our own trains."""
        return [self.app.chain(run) for run in all_trains(self.app.root) if may_act(run)]

    @cached_property
    def trains_on(self) -> dict[str, list[str]]:
        """For each node that has any, the trains that run there: several, where jobs share nodes."""
        found: dict[str, set[str]] = defaultdict(set)
        for job in self.jobs:
            if job.state.is_active and job.comment.startswith("opsctl:"):
                for node in expand(job.nodes):
                    found[node].add(job.comment.split(":")[1])
        return {node: sorted(trains) for node, trains in found.items()}

    def fanout(self) -> Fanout:
        """Through our own running jobs, short jobs on idle nodes, and whatever else the site allows."""
        me, mine = actor(), {}
        for job in self.jobs:
            if job.user == me and job.state is JobState.RUNNING:
                mine.update(dict.fromkeys(expand(job.nodes), job.id))
        idle = [node.name for node in self.nodes if state_words(node) <= FREE and "IDLE" in state_words(node)]
        return self.app.fanout(jobs=mine, idle=idle)

    def chosen(self, nodes: str, *, train: str = "", partition: str = "", every: bool = False) -> list[str]:
        """The nodes that are meant; without a word those of the trains that run. Raises InputError."""
        if nodes:
            names, known = expand(nodes), {node.name for node in self.nodes}
            if unknown := [name for name in names if name not in known]:
                raise InputError(f"no such nodes: {', '.join(unknown[:5])}", hint="opsctl nodes lists them")
            return names
        if partition:
            return self._some(self.app.scheduler.members(partition), f"partition {partition} has no nodes")
        if every:
            return [node.name for node in self.nodes]
        if train:
            name = self.app.find(train).name
            found = [node for node, trains in self.trains_on.items() if name in trains]
            return self._some(found, f"{name} does not run on any node now")
        return self._some(list(self.trains_on), "no train runs, so no nodes are meant by themselves")

    def _some(self, found: list[str], none: str) -> list[str]:
        if not found:
            raise InputError(none, hint="name them: opsctl health node[001-004], or --partition, or --all")
        return sorted(found)

    def check(self, nodes: Sequence[str], *, dcgm: int = 0, fio: str = "", train: str = "") -> CheckedNodes:
        """Look at these nodes. Raises ConfigError where the site names checks that there are not."""
        unknown = sorted(set(self.app.site.health.may_be_unknown) - set(CHECKS))
        if unknown:
            where = str(self.app.site_path or "site.toml")
            problem = f"[health] may_be_unknown: no such check: {', '.join(unknown)}; there are: {', '.join(CHECKS)}"
            raise ConfigError(where, [problem])
        looker = NodeChecker(
            fanout=self.fanout(), history=self.app.history, site=self.app.site.health, clock=self.app.clock,
            busy=busy_by_node(self.nodes),
        )  # fmt: skip
        return looker.check(nodes, dcgm=dcgm, fio=fio, gpus=self._gpus(train) if train else 0)

    def _gpus(self, train: str) -> int:
        run = self.app.find(train)
        try:
            return parse(TrainSettings, read_toml(run.config), str(run.config)).slurm.gpus_per_node
        except OpsctlError:
            return 0

    @property
    def reachable(self) -> frozenset[str]:
        """The nodes that can be expected to answer: in service, or only drained."""
        down = {"DOWN", "FAIL", "POWERED_DOWN", "POWER_DOWN", "REBOOT"}
        return frozenset(node.name for node in self.nodes if not state_words(node) & down)
