"""Checks of spare nodes inside a job: a sick spare is not used, and a healthy one takes the place of a sick node."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from opsctl.base.nodesets import expand
from opsctl.guard.node_care import NodeCare
from opsctl.nodes.health.node_state import Health
from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import Event, ExclusionDecided, RestartDecided
from opsctl.state.journal import Journal
from tests.support.gpu_nodes import GpuNodes, gpu_nodes
from tests.support.slurms import run_slurm
from tests.support.trains import Trains, until

TRAINER = "echo ' iteration 1/ 2 | lm loss: 2.5 |'; until [ -e {place}/go ]; do sleep 0.1; done; {then}"
ONCE = "mkdir {place}/failed 2>/dev/null && kill -9 $$; echo ' iteration 2/ 2 | lm loss: 2.5 |'"


@pytest.fixture
def world(slurm: Sandbox) -> Iterator[tuple[Trains, GpuNodes]]:
    with gpu_nodes(slurm) as made:
        yield made


def launch(trains: Trains) -> None:
    """Launch a train on node001 and node002, with node003 as its spare."""
    script = trains.place / "train.sh"
    script.write_text(TRAINER.format(place=trains.place, then=ONCE.format(place=trains.place)))
    table = {"nodes": 2, "spare_nodes": 1, "gpus_per_node": 2, "exclude": "node004", "extra": ()}
    trains.opsctl("launch", trains.toml(command=("bash", str(script)), **table))


def find_events(trains: Trains, kind: type[Event]) -> list[Event]:
    return [event for event in Journal(trains.run(), trains.app.clock).events() if isinstance(event, kind)]


def test_sick_spare_is_reported_and_not_used(world: tuple[Trains, GpuNodes]) -> None:
    trains, gpus = world
    gpus.change_gpu("node003", failure="Yes")
    launch(trains)
    [excluded] = until(lambda: find_events(trains, ExclusionDecided))
    assert excluded.nodes == "node003"
    alerts = trains.app.site_dir.alerts / "alerts.log"
    assert "node003" in until(lambda: alerts.exists() and alerts.read_text())
    (trains.place / "go").touch()
    until(lambda: not trains.rows())
    [restart] = find_events(trains, RestartDecided)
    assert (restart.nodes, restart.spares) == ("node001,node002", "")


def test_healthy_spare_takes_the_place_of_a_sick_node(world: tuple[Trains, GpuNodes]) -> None:
    trains, gpus = world
    gpus.change_gpu("node002", failure="Yes")
    launch(trains)
    [restart, *_] = until(lambda: find_events(trains, RestartDecided))
    assert (restart.attempt.endswith("_1.0"), restart.nodes, restart.spares) == (True, "node001,node003", "")
    (trains.place / "go").touch()
    until(lambda: not trains.rows())
    assert [attempt.task for attempt in trains.run().attempts()] == [1, 1, 1]


def test_spares_run_the_collective_test_inside_the_job(world: tuple[Trains, GpuNodes], slurm: Sandbox) -> None:
    pytest.importorskip("torch")
    trains, _ = world
    options = ("--parsable", "--nodes=2", "--mem=10", "--output=/dev/null", "--wrap=sleep 300")
    submitted = run_slurm(slurm, "sbatch", *options)
    job = submitted.strip()
    row = until(lambda: [row for row in trains.app.slurm.jobs() if row.id == job and row.nodes])[0]
    nodes = expand(row.nodes)
    care = NodeCare.of(trains.app, dict.fromkeys(nodes, job))
    verdicts = care.test_collectives(trains.app.slurm, nodes, python=sys.executable)
    trains.app.slurm.cancel(job)
    assert {verdict.node: verdict.health for verdict in verdicts} == dict.fromkeys(nodes, Health.HEALTHY)
