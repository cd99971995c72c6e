"""Verbs on nodes: a real Slurm, cards that answer from the corpus, a real sshd for each node."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.app import build
from opsctl.launch.train_arrays import TrainArrays
from opsctl.nodes.drain_plan import is_out
from opsctl.sandbox.cluster import Sandbox
from tests.endurance.kills.files import PATH
from tests.endurance.kills.kill_proof import Runs
from tests.endurance.kills.state import State
from tests.endurance.kills.trains import Train
from tests.support.gpu_nodes import NODES, GpuNodes
from tests.support.sshds import sshd
from tests.support.trains import until

HEALTH = "[health]\nsection_seconds = 5\ndrain_percent = 50\nundrain_gap_seconds = 0\n"
BAD = "node002"


@dataclass(kw_only=True)
class Cards:
    """What all worlds share: tools, and daemons that lead to the nodes."""

    nodes: GpuNodes
    remote: str


@contextmanager
def cards(place: Path) -> Iterator[Cards]:
    tools, keys = place / "tools", place / "sshd"
    tools.mkdir()
    keys.mkdir()
    nodes = GpuNodes(tools)
    with sshd(keys, NODES, path=f"{nodes.bin}:/usr/sbin:/usr/bin:/sbin:/bin") as made:
        yield Cards(nodes=nodes, remote=made.toml)


@dataclass(kw_only=True)
class Node(Train):
    """One node with a bad card; with `is_drained`, it was drained and has passed since."""

    cards: Cards
    is_drained: bool = False

    def make_train(self) -> None:
        self.site.write_text(self.site.read_text() + self.cards.remote + HEALTH)
        self.env["PATH"] = f"{self.cards.nodes.bin}:{PATH}"
        self.cards.nodes.change_gpu(BAD, failure="Yes")
        super().make_train()
        if self.is_drained:
            self.type("drain-bad-nodes", BAD)
            self.keep_away()
            self.cards.nodes.change_gpu(BAD)
            for _ in range(2):
                self.type("health", BAD, "--record")
        self.all_quiet()

    def keep_away(self) -> None:
        """Its trains are kept from it until tomorrow, as after a failure."""
        build(self.site).exclusions.add([(BAD, "opsctl: x: y")], hours=24)
        arrays = TrainArrays(run=self.run, journal=self.journal, slurm=self.slurm)
        arrays.exclude(BAD, needed=1, until=datetime.now(UTC) + timedelta(hours=24))

    def type(self, *words: str) -> None:
        code, _, text = self.runs.run(self, self.typed(words))
        assert code == 0, text

    def all_quiet(self) -> None:
        """No look is at work on any node."""
        busy = ("COMPLETING", "ALLOCATED", "MIXED", "NOT_RESPONDING")
        until(lambda: not any(word in node.state for node in self.slurm.nodes() for word in busy), seconds=250)

    def state(self) -> State:
        self.all_quiet()
        return super().state()

    def close(self) -> None:
        super().close()
        for node in self.slurm.nodes():
            if is_out(node):
                self.slurm.resume(node.name)
        self.all_quiet()


def on_nodes(verb: str, slurm: Sandbox, runs: Runs, made: Cards, launch: tuple[str, ...]) -> Node:
    is_drained = verb.startswith("undrain")
    later = "extra = ['--hold', '--begin=now+1hour']"
    return Node(
        words=(verb,) if is_drained else (verb, BAD),
        sandbox=slurm,
        runs=runs,
        cards=made,
        before=(launch,),
        slurm_table=later,
        is_drained=is_drained,
    )
