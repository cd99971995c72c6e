"""The view of the cluster that node commands share: queue, nodes, selection and checks."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import click

from opsctl.app import App
from opsctl.base.errors import ConfigError, InputError
from opsctl.base.model import Job, JobState, Node
from opsctl.base.nodesets import expand
from opsctl.base.ports import WAYS_INSIDE_A_JOB
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.output import complete_trains
from opsctl.host.system import user_name
from opsctl.launch.train_arrays import TrainArrays
from opsctl.nodes.drain_plan import busy_by_node, compute_cap, state_words
from opsctl.nodes.health.checks import CHECKS
from opsctl.nodes.health.node_checker import CheckedNodes, NodeChecker
from opsctl.nodes.remote.fanout import Fanout
from opsctl.settings.health import HealthSettings
from opsctl.state.journal import actor
from opsctl.state.run_dir import all_trains, may_act
from opsctl.telemetry.progress.train_settings import read_settings

F = TypeVar("F", bound=Callable[..., Any])


def make_train_option(*excluded: str) -> Callable[[F], F]:
    """Return the option --train of a command, which excludes other words of the command line."""
    return dependent_option(
        "--train",
        not_with=excluded,
        default="",
        shell_complete=complete_trains,
        help="Select the nodes that this train runs on.",
    )


train_option: Callable[[F], F] = make_train_option("--partition", "--all")
partition_option: Callable[[F], F] = dependent_option(
    "--partition",
    not_with=("NODES", "--all"),
    default="",
    help="Select the nodes of this partition.",
)
all_option: Callable[[F], F] = dependent_option(
    "--all",
    "every",
    not_with=("NODES", "--node-local"),
    is_flag=True,
    help="Select every node of the cluster.",
)


def _list_selections() -> str:
    """Return the ways in which the running command selects nodes."""
    context = click.get_current_context()
    options = [param.opts[-1] for param in context.command.params if isinstance(param, click.Option)]
    ways = [option for option in ("--nodes", "--partition", "--train", "--all") if option in options]
    named = [] if "--nodes" in ways else ["NODES"]
    return f"{', '.join([*named, *ways])}, such as {context.command_path} {'-w ' * (not named)}node[001-004]"


def check_named(_context: click.Context, _param: click.Parameter, text: str) -> str:
    """Return a node list that a command needs. Without a node, as from an unset variable of a shell, no default is
    taken."""
    if not text.strip():
        raise InputError("no node is named", hint="such as node[001-004]")
    return text


def _check_max(_context: click.Context, _param: click.Parameter, text: str) -> str:
    compute_cap(HealthSettings(), 1, text)  # raises InputError, before any node is checked
    return text


max_option: Callable[[F], F] = click.option(
    "--max",
    "most",
    metavar="N|%",
    default="",
    callback=_check_max,
    help="Limit on nodes, below the limits of the site.",
)
FREE = frozenset({"IDLE", "CLOUD", "DYNAMIC_NORM"})
"""State words of a node that is free for a short job."""


def _find_owners(root: Path) -> dict[str, str]:
    owners = {}
    for run in all_trains(root):
        with suppress(OSError):
            owners[run.name] = user_name(run.path.lstat().st_uid)
    return owners


@dataclass(frozen=True)
class NodeView:
    """The cluster as Slurm reported it at the first query of this command."""

    app: App

    @cached_property
    def jobs(self) -> list[Job]:
        return self.app.slurm.jobs()

    @cached_property
    def nodes(self) -> list[Node]:
        return self.app.slurm.nodes()

    @cached_property
    def all_arrays(self) -> list[TrainArrays]:
        """Return the arrays of the trains that this user may act on."""
        return [self.app.arrays(run) for run in all_trains(self.app.root) if may_act(run)]

    @cached_property
    def trains_on(self) -> dict[str, list[str]]:
        """Return the names of the trains on each node. Shared nodes have several."""
        names: dict[str, set[str]] = defaultdict(set)
        owners = _find_owners(self.app.root)
        for job in self.jobs:
            train = job.comment.split(":")[1] if job.comment.startswith("opsctl:") else ""
            # Comments are free text: only the owner's job belongs to the train.
            if job.state.is_active and train and job.user == owners.get(train):
                for node in expand(job.nodes):
                    names[node].add(train)
        return {node: sorted(trains) for node, trains in names.items()}

    def fanout(self) -> Fanout:
        """Return a fan-out through our running jobs, short jobs on idle nodes, and other ways of the site."""
        return self.app.fanout(jobs=self._own_jobs, idle=self._idle)

    @contextmanager
    def hold(self, nodes: Sequence[str], *, minutes: int) -> Iterator[Fanout]:
        """Yield a fan-out. Meanwhile, one job of ours holds those `nodes` that are idle, where Slurm grants them."""
        has_ways = set(self.app.site.remote.ways) >= WAYS_INSIDE_A_JOB
        free = sorted(set(nodes) & set(self._idle) - set(self._own_jobs)) if has_ways else []
        with self.app.short_job(free, minutes=minutes).hold(free) as held:
            idle = [node for node in self._idle if node not in held]
            yield self.app.fanout(jobs={**self._own_jobs, **held}, idle=idle)

    @cached_property
    def _own_jobs(self) -> dict[str, str]:
        """Return our running job on each node."""
        user, job_ids = actor(), {}
        for job in self.jobs:
            if job.user == user and job.state is JobState.RUNNING:
                job_ids.update(dict.fromkeys(expand(job.nodes), job.id))
        return job_ids

    @cached_property
    def _idle(self) -> list[str]:
        return [node.name for node in self.nodes if state_words(node) <= FREE and "IDLE" in state_words(node)]

    def chosen(self, nodes: str, *, train: str = "", partition: str = "", every: bool = False) -> list[str]:
        """Return the selected nodes (default: the nodes of running trains). Raises InputError."""
        if nodes:
            names, known = expand(nodes), {node.name for node in self.nodes}
            if unknown := [name for name in names if name not in known]:
                raise InputError(f"no such nodes: {', '.join(unknown[:5])}", hint="opsctl nodes lists them")
            return names
        if partition:
            return self._require(self.app.slurm.members(partition), f"partition {partition} has no nodes")
        if every:
            return [node.name for node in self.nodes]
        if train:
            name = self.app.find(train).name
            train_nodes = [node for node, trains in self.trains_on.items() if name in trains]
            return self._require(train_nodes, f"{name} does not run on any node now")
        return self._require(list(self.trains_on), "no train is running, so there is no default selection of nodes")

    def _require(self, nodes: list[str], problem: str) -> list[str]:
        if not nodes:
            raise InputError(problem, hint=f"select nodes: {_list_selections()}")
        return sorted(nodes)

    def check(self, nodes: Sequence[str], *, dcgm: int = 0, fio: str = "", train: str = "") -> CheckedNodes:
        """Check the nodes. Raises ConfigError if the site names an unknown check."""
        unknown = sorted(set(self.app.site.health.may_be_unknown) - set(CHECKS))
        if unknown:
            where = str(self.app.site_path or "site.toml")
            problem = f"[health] may_be_unknown: no such check: {', '.join(unknown)}; there are: {', '.join(CHECKS)}"
            raise ConfigError(where, [problem])
        checker = NodeChecker(
            fanout=self.fanout(),
            history=self.app.history,
            site=self.app.site.health,
            clock=self.app.clock,
            busy=busy_by_node(self.nodes),
            slurm_kinds=self.app.slurm.kinds(),
        )
        settings = read_settings(self.app.find(train)) if train else None
        return checker.check(nodes, dcgm=dcgm, fio=fio, gpus=settings.slurm.gpus_per_node if settings else 0)

    @property
    def reachable(self) -> frozenset[str]:
        """Return the nodes that should answer: in service, or only drained."""
        down = {"DOWN", "FAIL", "POWERED_DOWN", "POWER_DOWN", "REBOOT"}
        return frozenset(node.name for node in self.nodes if not state_words(node) & down)
