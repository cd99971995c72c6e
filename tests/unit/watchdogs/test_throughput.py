"""The throughput watchdog: training that is slower than usual."""

import random

import pytest

from opsctl.base.findings import Severity
from opsctl.state.events import AttemptFinalized, AttemptStarted
from opsctl.state.files import write_atomic
from opsctl.trainer.contract import Heartbeat, Phase, to_json
from opsctl.watchdogs.context import accept
from tests.support.watch_context import Bench, job, waiting

LINE = " iteration {step:8d}/ 1000 | elapsed time per iteration (s): {s:.3f} | global batch size: {batch} | {more}"


def write_steps(bench: Bench, first: int, count: int, tflops: float, *, noise: float = 0.005, seed: int = 1) -> None:
    dice = random.Random(seed)
    bench.write_log(
        *(
            LINE.format(step=first + n, s=100, batch=2048, more=f"TFLOPs: {tflops * (1 + dice.gauss(0, noise)):.2f} |")
            for n in range(count)
        )
    )


def write_node(bench: Bench, name: str, step_s: float, attempt: str = "7_1.0") -> None:
    heartbeat = Heartbeat(
        attempt=attempt, node=name, rank=0, phase=Phase.TRAIN, step=1, at=0.0, limit_s=9.0, step_s=step_s
    )
    write_atomic(bench.run.heartbeat / f"{name}-0.json", to_json(heartbeat))


def test_slow_node_is_named(bench: Bench) -> None:
    bench.start_task(node_count=3)
    write_steps(bench, 1, 100, 149)
    assert bench.judge("throughput").severity is Severity.OK
    for name, step_s in (("n1", 100.0), ("n2", 107.0), ("n3", 100.1)):
        write_node(bench, name, step_s)
    write_node(bench, "n9", 300.0, attempt="6_1.0")
    write_steps(bench, 101, 10, 140)
    finding = bench.judge("throughput")
    assert finding.severity is Severity.WARNING
    assert finding.summary.startswith("gpt: 140")
    assert finding.summary.endswith(
        "TFLOPs at step 110, usually 149: 6 % slower; n2 is the slowest: 107 s a step, the next 100 s"
    )
    assert (finding.node, finding.lines[0]) == ("n2", "n2: 107 s a step")


def test_uniform_slowness_names_no_node(bench: Bench) -> None:
    bench.start_task()
    write_steps(bench, 1, 100, 149)
    for name in ("n1", "n2"):
        write_node(bench, name, 100.0)
    write_steps(bench, 101, 10, 100)
    finding = bench.judge("throughput")
    assert (finding.severity, finding.node, finding.lines) == (Severity.CRITICAL, "", ())


def test_ended_train_is_ok(bench: Bench) -> None:
    bench.start_task()
    write_steps(bench, 1, 100, 149)
    write_steps(bench, 101, 10, 100)
    assert bench.judge("throughput").severity is Severity.CRITICAL
    bench.jobs = (waiting("Dependency"),)
    assert bench.judge("throughput").severity is Severity.CRITICAL
    bench.journal.append(AttemptStarted(attempt="7_1.0", nodes="n1"))
    bench.journal.append(
        AttemptFinalized(attempt="7_1.0", outcome="killed", action="cancel-queued", why="the kill switch")
    )
    assert bench.judge("throughput").severity is Severity.CRITICAL
    bench.jobs = ()
    assert bench.judge("throughput").severity is Severity.OK


def test_single_slow_steps_are_ok(bench: Bench) -> None:
    write_steps(bench, 1, 100, 149)
    for step in (101, 103, 105):
        write_steps(bench, step, 1, 20)
        write_steps(bench, step + 1, 1, 149)
    write_steps(bench, 107, 4, 149)
    assert bench.judge("throughput").severity is Severity.OK


def test_usual_noise_is_ok(bench: Bench) -> None:
    severities = []
    for block in range(30):
        write_steps(bench, 1 + 30 * block, 30, 149, noise=0.15, seed=block)
        severities.append(bench.judge("throughput").severity)
    assert set(severities) == {Severity.OK}


def test_throughput_counts_samples(bench: Bench) -> None:
    bench.write_log(*(LINE.format(step=n, s=10, batch=200, more="") for n in range(1, 60)))
    bench.write_log(*(LINE.format(step=n, s=20, batch=400, more="") for n in range(60, 90)))
    assert bench.judge("throughput").severity is Severity.OK


def test_other_node_count_starts_anew(bench: Bench) -> None:
    bench.start_task(node_count=4)
    write_steps(bench, 1, 100, 149)
    bench.judge("throughput")
    bench.jobs = (job(node_count=2),)
    write_steps(bench, 101, 20, 70)
    assert bench.judge("throughput").summary == "gpt: too few steps to judge"


def test_log_without_steps_is_unknown(bench: Bench) -> None:
    bench.write_log("a trainer that logs nothing known")
    finding = bench.judge("throughput")
    assert (finding.severity, finding.summary) == (Severity.UNKNOWN, "gpt: no step times in the log")


def test_nothing_logged_is_no_alarm(bench: Bench) -> None:
    finding = bench.judge("throughput")
    assert (finding.severity, finding.summary) == (Severity.OK, "gpt: no step times: nothing logged yet")


def test_speed_of_another_trainer_is_watched(bench: Bench) -> None:
    bench.write_log(*(f"step: {n:2}  loss:  2.5  memory: 1GiB(1%)  tps: 7,250" for n in range(1, 100)))
    assert bench.judge("throughput").severity is Severity.OK
    bench.write_log(*(f"step: {n:2}  loss:  2.5  memory: 1GiB(1%)  tps: 3,250" for n in range(100, 115)))
    assert bench.judge("throughput").severity is Severity.CRITICAL


@pytest.mark.parametrize("count", [1, 5, 29])
def test_few_steps_are_not_judged(bench: Bench, count: int) -> None:
    write_steps(bench, 1, count, 149)
    assert bench.judge("throughput").summary == "gpt: too few steps to judge"


@pytest.mark.parametrize("tflops", [138, 120])
def test_fast_start_up_is_no_usual_speed(bench: Bench, tflops: float) -> None:
    write_steps(bench, 1, 30, 149)
    for step in range(31, 400, 3):
        write_steps(bench, step, 3, tflops)
        assert bench.judge("throughput").severity is Severity.OK


def test_large_fall_early_is_noticed(bench: Bench) -> None:
    write_steps(bench, 1, 40, 149)
    write_steps(bench, 41, 12, 75)
    assert bench.judge("throughput").severity is Severity.CRITICAL


def test_lasting_fall_is_not_the_new_normal(bench: Bench) -> None:
    write_steps(bench, 1, 300, 149)
    assert bench.judge("throughput").severity is Severity.OK
    for block in range(20):
        write_steps(bench, 301 + 30 * block, 30, 92)
        assert bench.judge("throughput").severity is Severity.CRITICAL
    write_steps(bench, 901, 30, 149)
    assert bench.judge("throughput").severity is Severity.OK


@pytest.mark.parametrize("count", [190, 1000])
def test_fall_between_two_cycles_is_noticed(bench: Bench, count: int) -> None:
    write_steps(bench, 1, 300, 149)
    bench.judge("throughput")
    write_steps(bench, 301, count, 92)
    assert bench.judge("throughput").severity is Severity.CRITICAL


def test_slow_decline_is_noticed(bench: Bench) -> None:
    write_steps(bench, 1, 300, 149)
    for block in range(40):
        write_steps(bench, 301 + 50 * block, 50, 149 * 0.997**block)
        finding = bench.judge("throughput")
    assert (finding.severity, "11 % slower" in finding.summary) == (Severity.WARNING, True)


def test_baseline_of_a_node_count_is_kept(bench: Bench) -> None:
    bench.start_task(node_count=4)
    write_steps(bench, 1, 100, 149)
    bench.judge("throughput")
    bench.jobs = (job(node_count=2),)
    bench.judge("throughput")
    write_steps(bench, 101, 100, 70)
    assert bench.judge("throughput").severity is Severity.OK
    bench.jobs = (job(node_count=4),)
    write_steps(bench, 201, 20, 92)
    assert bench.judge("throughput").severity is Severity.OK, "the lines may be of either node count"
    write_steps(bench, 221, 20, 92)
    assert bench.judge("throughput").severity is Severity.CRITICAL


@pytest.mark.parametrize("step_s", [60, 3600])
def test_hang_that_ended_is_no_slow_step(bench: Bench, step_s: float) -> None:
    bench.write_log(*(LINE.format(step=n, s=1, batch=8, more="") for n in range(1, 100)))
    bench.judge("throughput")
    bench.write_log(LINE.format(step=100, s=step_s, batch=8, more=""))
    mean_s, step = 0.3 * step_s + 0.7, 101
    while mean_s > 1.001:  # a progress bar's running mean
        bench.write_log(LINE.format(step=step, s=mean_s, batch=8, more=""))
        assert bench.judge("throughput").severity is Severity.OK
        mean_s, step = 0.3 + 0.7 * mean_s, step + 1


def test_very_slow_steps_are_no_pause(bench: Bench) -> None:
    write_steps(bench, 1, 100, 149)
    bench.judge("throughput")
    write_steps(bench, 101, 12, 10)
    assert bench.judge("throughput").severity is Severity.CRITICAL


def test_accepted_speed_is_the_new_normal(bench: Bench) -> None:
    write_steps(bench, 1, 100, 149)
    write_steps(bench, 101, 50, 92)
    finding = bench.judge("throughput")
    assert finding.remedy.endswith("opsctl alerts accept throughput/gpt --reason ...")
    accept(bench.make_context().memory, "throughput/gpt", at="2026-01-05T02:00:00+00:00", by="anna", reason="fewer")
    write_steps(bench, 151, 50, 92)
    assert bench.judge("throughput").severity is Severity.OK
    write_steps(bench, 201, 50, 60)
    assert bench.judge("throughput").severity is Severity.CRITICAL
