"""Slower than usual."""

from __future__ import annotations

import random

import pytest

from opsctl.model import Level
from opsctl.state.files import write_atomic
from opsctl.state.journal import EventKind
from opsctl.trainer.contract import Heartbeat, Phase, to_json
from tests.support.watch_context import Stage, job, waiting

LINE = " iteration {step:8d}/ 1000 | elapsed time per iteration (s): {s:.3f} | global batch size: {batch} | {more}"


def say(stage: Stage, first: int, count: int, tflops: float, *, noise: float = 0.005, seed: int = 1) -> None:
    dice = random.Random(seed)
    stage.say(
        *(
            LINE.format(step=first + n, s=100, batch=2048, more=f"TFLOPs: {tflops * (1 + dice.gauss(0, noise)):.2f} |")
            for n in range(count)
        )
    )


def node(stage: Stage, name: str, step_s: float, attempt: str = "7_1.0") -> None:
    heartbeat = Heartbeat(
        attempt=attempt, node=name, rank=0, phase=Phase.TRAIN, step=1, at=0.0, limit_s=9.0, step_s=step_s
    )
    write_atomic(stage.run.heartbeat / f"{name}-0.json", to_json(heartbeat))


def test_from_149_to_140_tflops_by_one_slow_node(stage: Stage) -> None:
    stage.runs(node_count=3)
    say(stage, 1, 100, 149)
    assert stage.look("throughput").level is Level.OK
    for name, step_s in (("n1", 100.0), ("n2", 107.0), ("n3", 100.1)):
        node(stage, name, step_s)
    node(stage, "n9", 300.0, attempt="6_1.0")
    say(stage, 101, 10, 140)
    finding = stage.look("throughput")
    assert finding.level is Level.WARNING
    assert finding.summary.startswith("gpt: 140")
    assert finding.summary.endswith(
        "TFLOPs at step 110, usually 149: 6 % slower; n2 is the slowest: 107 s a step, the next 100 s"
    )
    assert (finding.node, finding.evidence[0]) == ("n2", "n2: 107 s a step")


def test_where_no_node_stands_out_none_is_blamed(stage: Stage) -> None:
    stage.runs()
    say(stage, 1, 100, 149)
    for name in ("n1", "n2"):
        node(stage, name, 100.0)
    say(stage, 101, 10, 100)
    finding = stage.look("throughput")
    assert (finding.level, finding.node, finding.evidence) == (Level.CRITICAL, "", ())


def test_of_a_train_that_is_over_nobody_is_told_that_it_was_slow(stage: Stage) -> None:
    stage.runs()
    say(stage, 1, 100, 149)
    say(stage, 101, 10, 100)
    assert stage.look("throughput").level is Level.CRITICAL
    stage.jobs = (waiting("Dependency"),)
    assert stage.look("throughput").level is Level.CRITICAL
    stage.journal.append(EventKind.ATTEMPT_STARTED, attempt="7_1.0", nodes="n1")
    stage.journal.append(
        EventKind.ATTEMPT_FINALIZED, attempt="7_1.0", outcome="killed", action="cancel-queued", why="the kill switch"
    )
    assert stage.look("throughput").level is Level.CRITICAL
    stage.jobs = ()
    assert stage.look("throughput").level is Level.OK


def test_single_slow_steps_say_nothing(stage: Stage) -> None:
    say(stage, 1, 100, 149)
    for step in (101, 103, 105):
        say(stage, step, 1, 20)
        say(stage, step + 1, 1, 149)
    say(stage, 107, 4, 149)
    assert stage.look("throughput").level is Level.OK


def test_a_machine_that_is_never_steady_is_not_told_about_for_what_is_usual_there(stage: Stage) -> None:
    found = []
    for block in range(30):
        say(stage, 1 + 30 * block, 30, 149, noise=0.15, seed=block)
        found.append(stage.look("throughput").level)
    assert set(found) == {Level.OK}


def test_a_batch_that_grows_is_not_slower_in_samples(stage: Stage) -> None:
    stage.say(*(LINE.format(step=n, s=10, batch=200, more="") for n in range(1, 60)))
    stage.say(*(LINE.format(step=n, s=20, batch=400, more="") for n in range(60, 90)))
    assert stage.look("throughput").level is Level.OK


def test_on_other_nodes_it_begins_anew(stage: Stage) -> None:
    stage.runs(node_count=4)
    say(stage, 1, 100, 149)
    stage.look("throughput")
    stage.jobs = (job(node_count=2),)
    say(stage, 101, 20, 70)
    assert stage.look("throughput").summary == "gpt: too few steps to judge"


def test_log_without_steps_is_unknown(stage: Stage) -> None:
    stage.say("a trainer that logs nothing known")
    finding = stage.look("throughput")
    assert (finding.level, finding.summary) == (Level.UNKNOWN, "gpt: no step times in the log")


def test_nothing_logged_is_no_alarm(stage: Stage) -> None:
    finding = stage.look("throughput")
    assert (finding.level, finding.summary) == (Level.OK, "gpt: no step times: nothing logged yet")


def test_speed_of_another_trainer_is_watched(stage: Stage) -> None:
    stage.say(*(f"step: {n:2}  loss:  2.5  memory: 1GiB(1%)  tps: 7,250" for n in range(1, 100)))
    assert stage.look("throughput").level is Level.OK
    stage.say(*(f"step: {n:2}  loss:  2.5  memory: 1GiB(1%)  tps: 3,250" for n in range(100, 115)))
    assert stage.look("throughput").level is Level.CRITICAL


@pytest.mark.parametrize("count", [1, 5, 29])
def test_a_few_steps_say_nothing(stage: Stage, count: int) -> None:
    say(stage, 1, count, 149)
    assert stage.look("throughput").summary == "gpt: too few steps to judge"
