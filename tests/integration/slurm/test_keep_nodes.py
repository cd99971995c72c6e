"""A failure that the allocation survives: the trainer starts again in the same job, on the same nodes or on spares."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.base.nodesets import expand
from opsctl.guard.attempt_record import read_start
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.state.events import HoldReleased, RepairAwaited, RestartDecided
from opsctl.state.journal import Journal
from opsctl.state.switches import Switch, arm
from tests.support.trains import Trains, trains_on, until

TRAINER = Path(__file__).with_suffix(".sh").read_text()
"""Ranks that count steps, and that do something once at the fifth step."""
KILLED_RANK = '[ "$SLURM_PROCID" = 1 ] && kill -9 $$'
SHORT = "echo ' iteration 2000/ 2000 | lm loss: 2.5 |'"
FIRST_FAILS = "case $TRAIN_ATTEMPT in *.0) exit 1 ;; esac"
DEAD_NODE = "until [ -e {place}/lost ]; do sleep 0.1; done; exit 1"


@pytest.fixture
def trains(slurm: Sandbox) -> Iterator[Trains]:
    with trains_on(slurm) as trains:
        yield trains


def launch(
    trains: Trains,
    *,
    last: int = 20,
    at_step_5: str = KILLED_RANK,
    before: str = "true",
    more: str = "",
    **slurm: object,
) -> None:
    script = trains.place / "train.sh"
    script.write_text(TRAINER.format(place=trains.place, last=last, at_step_5=at_step_5, before=before))
    command = ("bash", str(script))
    table = {"nodes": 2, "tasks": 3, "extra": (), **slurm}
    trains.opsctl("launch", trains.toml(command=command, more=more, **table))


def list_ends(trains: Trains) -> list[dict[str, str]]:
    paths = sorted(trains.run().path.glob("attempts/*/end.json"))
    return [json.loads(path.read_text()) for path in paths]


def await_finish(trains: Trains) -> list[dict[str, str]]:
    """Return the ends of all attempts, in order, once the last has finished and its guard is gone."""
    until(lambda: not trains.rows())
    ends = list_ends(trains)
    assert ends[-1]["outcome"] == "finished", trains.run().main_log.read_text()
    return ends


def test_killed_rank_costs_no_task(trains: Trains) -> None:
    launch(trains)
    ends = await_finish(trains)
    assert [end["outcome"] for end in ends] == ["crashed", "finished"]
    first, second = (trains.run().attempt(end["attempt"]) for end in ends)
    assert (second.job, second.number) == (first.job, 1)
    starts = [read_start(attempt) for attempt in (first, second)]
    assert len({tuple(expand(start.nodes)) for start in starts if start}) == 1
    assert RestartDecided in trains.kinds()


def test_status_counts_restarts_in_place(trains: Trains) -> None:
    launch(trains, last=2000)
    until(lambda: (trains.run().path / "attempts").is_dir() and len(trains.run().attempts()) == 2)
    until(lambda: "restarted in place once" in trains.opsctl("status", "t"))
    [running] = json.loads(trains.opsctl("status", "t", "--json"))[0]["running"]
    assert (running["restarts"], running["spares"]) == (1, [])


def test_without_restart_in_place_the_next_task_goes_on(trains: Trains) -> None:
    launch(trains, more="restart_in_place = false")
    ends = await_finish(trains)
    assert [trains.run().attempt(end["attempt"]).number for end in ends] == [0, 0]


def test_spare_takes_the_place_of_a_node_that_dies_after_a_restart(fresh_slurm: Callable[..., Sandbox]) -> None:
    sandbox = fresh_slurm(nodes=4)
    with trains_on(sandbox) as trains:
        launch(trains, at_step_5=DEAD_NODE.format(place=trains.place), before=FIRST_FAILS, nodes=3, spare_nodes=1)
        until(lambda: len(list_ends(trains)) == 1 and (trains.place / "failed-1").exists())
        nodes = expand(next(row.nodes for row in trains.rows() if row.nodes))
        assert f"spare: {nodes[3]}" in trains.opsctl("status", "t")
        sandbox.fault(nodes[1], FaultKind.CRASH)
        (trains.place / "lost").touch()
        ends = await_finish(trains)
        assert [end["outcome"] for end in ends] == ["crashed", "node-failed", "finished"]
        assert [list(end.get("suspects", ())) for end in ends] == [[], [nodes[1]], []]
        starts = [read_start(trains.run().attempt(end["attempt"])) for end in ends]
        assert [expand(start.nodes) for start in starts if start] == [nodes[:3], nodes[:3], [nodes[0], *nodes[2:]]]
        kept = [e.nodes for e in Journal(trains.run(), trains.app.clock).events() if isinstance(e, RestartDecided)]
        assert kept == [",".join(nodes[:3]), f"{nodes[0]},{nodes[3]},{nodes[2]}"]
        ranks = {path.name for path in trains.run().attempt_logs(ends[-1]["attempt"]).glob("*-*.log")}
        assert ranks == {f"{node}-{rank}.log" for rank, node in enumerate((nodes[0], nodes[3], nodes[2]))}
        first = next(node.address for node in trains.app.slurm.nodes() if node.name == nodes[0])
        for rank in range(3):
            names = (trains.place / f"env-{rank}").read_text().split()
            assert names == [str(rank), str(rank), "3", "3", first, nodes[0], nodes[3], nodes[2]]


def test_restart_runs_the_edited_files_in_the_same_job(trains: Trains) -> None:
    launch(trains, last=2000, at_step_5="true", more="stop_after_seconds = 0.5")
    until((trains.place / "failed-1").exists)
    changed = trains.place / "changed.toml"
    changed.write_text((trains.place / "t.toml").read_text().replace("train.sh'", "short.sh'"))
    (trains.place / "short.sh").write_text(SHORT)
    assert "starts again on the same nodes" in trains.opsctl("edit", "t", changed, "--now")
    ends = await_finish(trains)
    assert [end["outcome"] for end in ends] == ["restarted", "finished"]
    assert [trains.run().attempt(end["attempt"]).number for end in ends] == [0, 1]
    assert not list(trains.run().switches.iterdir())


def test_restart_without_a_rank_gives_the_nodes_back(trains: Trains) -> None:
    once = f"[setup]\nlines = ['[ ! -e {trains.place}/failed-1 ] || exit 9']"
    launch(trains, more=once)
    until(lambda: [row for row in trains.rows() if row.state.is_waiting and row.is_held])
    attempts = [trains.run().attempt(end["attempt"]) for end in list_ends(trains)]
    assert [(attempt.task, attempt.number) for attempt in attempts][:3] == [(1, 0), (1, 1), (2, 0)]


def test_kill_switch_outweighs_a_restart(trains: Trains) -> None:
    launch(trains, last=2000)
    until((trains.place / "failed-1").exists)
    trains.opsctl("kill-switch", "arm", "t", "--reason", "stop")
    until(lambda: not trains.rows())
    assert {end["outcome"] for end in list_ends(trains)} <= {"crashed", "killed"}


FAULTY = "[ -e {place}/fixed ] || python3 -c 'import nothing_by_this_name' || exit 1; {trains}"


def fail_twice(trains: Trains, wait: str) -> None:
    """Launch a train with a fault in its code, and wait until its nodes wait for a repair."""
    (trains.place / "short.sh").write_text(SHORT)
    script = trains.place / "train.sh"
    script.write_text(FAULTY.format(place=trains.place, trains=SHORT))
    more = f"wait_for_repair = '{wait}'"
    trains.opsctl("launch", trains.toml(command=("bash", str(script)), nodes=2, tasks=2, extra=(), more=more))
    until(lambda: RepairAwaited in trains.kinds())


@pytest.mark.parametrize("repair", ["edit", "release", "restart"])
def test_repair_of_a_held_train_starts_in_the_same_job(trains: Trains, repair: str) -> None:
    fail_twice(trains, "10m")
    [status] = json.loads(trains.opsctl("status", "t", "--json"))
    assert (status["state"], len(status["running"])) == ("held", 1)
    assert "waits for a repair until" in trains.opsctl("status", "t")
    alerts = trains.app.site_dir.alerts / "alerts.log"
    assert "wait for a repair until" in until(lambda: alerts.exists() and alerts.read_text())
    trains.opsctl("hold", "t")
    trains.opsctl("save-switch", "t")
    if repair == "edit":
        changed = trains.place / "changed.toml"
        changed.write_text((trains.place / "t.toml").read_text().replace("train.sh'", "short.sh'"))
        trains.opsctl("edit", "t", changed)
    else:
        (trains.place / "fixed").touch()
        trains.opsctl(repair, "t", *(("--reason", "fixed") if repair == "restart" else ()))
    ends = await_finish(trains)
    attempts = [trains.run().attempt(end["attempt"]) for end in ends]
    assert [(attempt.job, attempt.number) for attempt in attempts] == [(attempts[0].job, n) for n in range(3)]
    assert HoldReleased in trains.kinds()


@pytest.mark.parametrize("end", ["time", "kill-switch", "pause", "cancel", "SIGKILL of the guard"])
def test_wait_for_a_repair_ends_with_a_held_or_cancelled_queue(trains: Trains, end: str) -> None:
    fail_twice(trains, "3s" if end == "time" else "10m")
    if end == "kill-switch":
        trains.opsctl("kill-switch", "arm", "t", "--reason", "stop")
    elif end == "pause":
        arm(trains.run(), Switch.PAUSE, why="as a team member does")
    elif end == "cancel":
        trains.opsctl("cancel", "t")
    elif end != "time":
        events = Journal(trains.run(), trains.app.clock).events()
        [awaited] = [event for event in events if isinstance(event, RepairAwaited)]
        os.kill(int(awaited.actor.rpartition(":")[2]), signal.SIGKILL)
    until(lambda: not [row for row in trains.rows() if row.state.is_active])
    assert {row.is_held for row in trains.rows()} == (set() if end in {"kill-switch", "cancel"} else {True})
    assert len(trains.run().attempts()) == 2


def test_rollback_while_the_nodes_wait_for_a_repair_starts_the_next_task(trains: Trains) -> None:
    fail_twice(trains, "10m")
    for step in (5, 10):
        (trains.run().checkpoints / f"step-{step}").mkdir()
        (trains.run().checkpoints / f"step-{step}" / "weights").write_text("1")
    (trains.place / "fixed").touch()
    assert "rolled back to step 5" in trains.opsctl("rollback", "t", "--to", "5")
    ends = await_finish(trains)
    assert [(attempt.task, attempt.number) for attempt in (trains.run().attempt(end["attempt"]) for end in ends)] == [
        (1, 0),
        (1, 1),
        (2, 0),
    ]


def test_unused_spare_goes_back_while_the_ranks_run(fresh_slurm: Callable[..., Sandbox]) -> None:
    with trains_on(fresh_slurm(nodes=3)) as trains:
        wait = f"until [ -e {trains.place}/go ]; do sleep 0.1; done; {KILLED_RANK}"
        launch(trains, at_step_5=wait, spare_nodes=1, release_spares_after="1s")
        until((trains.place / "failed-1").exists)
        until(lambda: "gave the unused spare nodes back: " in trains.run().main_log.read_text())
        assert [len(expand(row.nodes)) for row in trains.rows() if row.nodes] == [2]
        (trains.place / "go").touch()
        ends = await_finish(trains)
        numbers = [trains.run().attempt(end["attempt"]).number for end in ends]
        assert numbers == [0, 1], trains.run().main_log.read_text()
