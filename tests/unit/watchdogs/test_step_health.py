"""Skipped steps, loss scale, gradient norm and steps without a loss, from lines as trainers print them."""

import math

import pytest

from opsctl.base.findings import Severity
from opsctl.base.statements import say
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.step_reader import StepReader
from opsctl.watchdogs.context import recall, to_fields
from opsctl.watchdogs.step_health import StepHealth, advance, find_problems
from tests.support.watch_context import Bench

MEGATRON = (
    " iteration {step:8d}/  500000 | consumed samples: 1 | elapsed time per iteration (ms): 9.0 |{loss}"
    " loss scale: {scale:.1f} | grad norm: {norm:.3f} | number of skipped iterations: {skipped} |"
    " number of nan iterations:   0 |"
)


def megatron_line(
    step: int, *, loss: float | None = 2.0, scale: float = 65536, norm: float = 0.3, skipped: int = 0
) -> str:
    text = f" lm loss: {loss:.6E} |" if loss is not None else ""
    return MEGATRON.format(step=step, loss=text, scale=scale, norm=norm, skipped=skipped)


def lines(first: int, last: int, **fields: float | None) -> list[Iteration]:
    return [Iteration(step=step, **{"loss": 2.0, **fields}) for step in range(first, last)]  # type: ignore[arg-type]  # each test passes fields of their types


def texts(health: StepHealth) -> list[tuple[Severity, str]]:
    return [(problem.severity, say(problem.says)) for problem in find_problems(health)]


def test_collapsed_fp16_run_is_critical(bench: Bench) -> None:
    bench.write_log(*(megatron_line(step) for step in range(100, 2000, 10)))
    assert [finding.severity for finding in bench.judge_all("loss")] == [Severity.OK, Severity.OK]
    bench.write_log(*(megatron_line(step, loss=None, scale=1, skipped=10) for step in range(2000, 2300, 10)))
    finding = bench.judge_all("loss")[1]
    assert (finding.key, finding.severity) == ("loss/gpt/steps", Severity.CRITICAL)
    assert finding.summary == "gpt: all of the last 300 steps were skipped; now at step 2290"
    assert finding.lines == (
        "the loss scale has been 1 for 30 lines (it was 65536)",
        "steps advance, but the last 30 lines state no loss",
    )


def test_steps_skipped_by_a_new_loss_scale_are_ok() -> None:
    health = advance(StepHealth(), lines(1, 18, skipped=1, loss_scale=2.0**20))
    assert texts(advance(health, lines(18, 60, skipped=0, loss_scale=2.0**15))) == []


def test_frequently_skipped_steps_are_a_warning() -> None:
    health = advance(StepHealth(), lines(1, 100, skipped=0))
    run = [Iteration(step=step, loss=2.0, skipped=int(step % 3 == 0)) for step in range(100, 160)]
    assert texts(advance(health, run)) == [(Severity.WARNING, "17 of the last 50 steps were skipped")]


def test_total_of_skipped_steps_is_no_count_of_a_line() -> None:
    log = [f"[Rank 0] step={step}, skipped=17, lr=[0.0001], mom=[(0.9, 0.95)]".encode() for step in range(10, 3000, 10)]
    reader = StepReader()
    steps = [step for line in log for step in reader.read(line).iterations]
    assert {step.skipped_total for step in steps} == {17}
    assert texts(advance(StepHealth(), steps)) == []


def test_loss_scale_of_bf16_is_ok() -> None:
    assert texts(advance(StepHealth(), lines(1, 500, loss_scale=1.0))) == []


def test_loss_scale_at_its_floor_is_critical() -> None:
    health = advance(advance(StepHealth(), lines(1, 50, loss_scale=1024.0)), lines(50, 53, loss_scale=1.0))
    assert texts(health) == [(Severity.CRITICAL, "the loss scale has been 1 for 3 lines (it was 1024)")]


def test_nan_norm_with_a_finite_loss_is_critical() -> None:
    health = advance(advance(StepHealth(), lines(1, 50, grad_norm=0.3)), lines(50, 53, grad_norm=math.nan))
    assert texts(health) == [(Severity.CRITICAL, "the gradient norm has not been finite for 3 lines")]


def test_infinite_norm_of_a_skipped_step_is_ok() -> None:
    health = advance(StepHealth(), lines(1, 50, grad_norm=0.3, skipped=0))
    assert texts(advance(health, lines(50, 56, grad_norm=math.inf, skipped=1))) == []


@pytest.mark.parametrize(("norm", "is_reported"), [(5.0, False), (6.5, True)])
def test_jump_of_the_norm_is_a_warning(norm: float, *, is_reported: bool) -> None:
    health = advance(StepHealth(), [*lines(1, 50, grad_norm=0.3), *lines(50, 51, grad_norm=norm)])
    health = advance(health, lines(51, 55, grad_norm=0.3))
    assert bool(texts(health)) is is_reported
    assert texts(advance(health, lines(55, 70, grad_norm=0.3))) == []


def test_jump_between_two_cycles_is_reported_at_once(bench: Bench) -> None:
    bench.write_log(*(megatron_line(step) for step in range(1, 100)))
    bench.judge_all("loss")
    bench.write_log(megatron_line(100, norm=9.0), *(megatron_line(step) for step in range(101, 200)))
    finding = bench.judge_all("loss")[1]
    assert (finding.severity, finding.is_certain) == (Severity.WARNING, True)
    assert finding.summary == "gpt: the gradient norm was 9 at step 100, usually 0.3; now at step 199"


def test_loss_in_every_tenth_line_is_ok() -> None:
    run = [Iteration(step=step, loss=2.0 if step % 100 == 0 else None) for step in range(1, 450)]
    assert texts(advance(StepHealth(), run)) == []


def test_steps_without_a_loss_are_critical() -> None:
    health = advance(advance(StepHealth(), lines(1, 50)), lines(50, 70, loss=None))
    assert texts(health) == [(Severity.CRITICAL, "steps advance, but the last 20 lines state no loss")]


def test_rollback_starts_the_counts_anew() -> None:
    health = advance(StepHealth(), [*lines(1, 50, skipped=0), *lines(50, 110, skipped=1)])
    assert texts(health) != []
    assert texts(advance(health, lines(40, 45, skipped=0))) == []


@pytest.mark.parametrize(
    ("usual", "bad"),
    [
        ({"skipped": 0}, {"skipped": 1}),
        ({"loss_scale": 4096.0}, {"loss_scale": 1.0}),
        ({"grad_norm": 0.3, "loss": 2.0}, {"grad_norm": float("nan"), "loss": 2.0}),
        ({"grad_norm": 0.3, "loss": 2.0}, {"grad_norm": 0.3, "loss": None}),
    ],
)
def test_resumed_attempt_in_the_same_trouble_resolves_nothing(usual: dict, bad: dict) -> None:
    health = advance(StepHealth(), [*lines(1, 50, **usual), *lines(50, 150, **bad)])
    assert find_problems(health)[0].severity is Severity.CRITICAL
    assert find_problems(advance(health, lines(140, 141, **bad)))[0].severity is Severity.CRITICAL
    assert texts(advance(health, lines(40, 60, **usual))) == []


def test_resumed_attempt_whose_log_sums_up_skipped_steps_resolves_nothing() -> None:
    def skip(first: int, last: int) -> list[Iteration]:
        return [Iteration(step=step, loss=2.0, skipped_total=max(0, step - 50)) for step in range(first, last)]

    health = advance(StepHealth(), skip(1, 150))
    assert texts(health)[0][0] is Severity.CRITICAL
    assert texts(advance(health, skip(140, 143)))[0][0] is Severity.CRITICAL
    assert texts(advance(health, lines(40, 42, skipped_total=0))) == []


def test_saved_steps_are_continued() -> None:
    run = [*lines(1, 50, grad_norm=0.3, loss_scale=4.0, skipped=0), *lines(50, 51, grad_norm=9.0, skipped=1)]
    health = advance(StepHealth(), run)
    continued = advance(recall(StepHealth, to_fields(health)), lines(51, 55))
    assert continued == advance(health, lines(51, 55))


@pytest.mark.parametrize("fields", [None, 3, {}, {"window": [1]}, {"colour": 1}])
def test_invalid_saved_steps_are_discarded(fields: object) -> None:
    assert recall(StepHealth, fields) in (None, StepHealth())
