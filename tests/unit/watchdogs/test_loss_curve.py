"""Shapes of loss curves: synthetic incidents, and calm curves without any."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from opsctl.telemetry.progress.iteration_lines import Iteration
from opsctl.watchdogs.context import recall, to_fields
from opsctl.watchdogs.loss_curve import LossShape, LossState, advance, shape
from opsctl.watchdogs.loss_level import accept_level

CALM = LossShape.CALM
AT = 400
"""The step of the incident."""


def calm(step: int) -> float:
    """Return the loss of a model that learns."""
    return 1.7 + 8 * (step + 200) ** -0.4


def make_noise(seed: int = 3, share: float = 0.01) -> Callable[[], float]:
    dice = random.Random(seed)
    return lambda: 1 + dice.gauss(0, share)


def detect(loss: Callable[[int], float], steps: int = 1000, *, grad_norm: float = 0.2) -> list[tuple[int, LossShape]]:
    """Return the shapes that are detected, with the number of steps since AT."""
    iterator = _detect(Iteration(step=step, loss=loss(step), grad_norm=grad_norm) for step in range(1, steps))
    return [(step - AT, loss_shape) for step, loss_shape in iterator if step >= AT - 50]


def _detect(lines: Iterable[Iteration]) -> Iterator[tuple[int, LossShape]]:
    curve, last = LossState(), LossShape.LEARNING
    for line in lines:
        curve = advance(curve, [line])
        if shape(curve) is not last:
            last = shape(curve)
            yield line.step, last


def list_shapes(loss: Callable[[int], float], steps: int = 1000) -> list[LossShape]:
    return [loss_shape for _, loss_shape in detect(loss, steps)]


def after(step: int, rise: Callable[[int], float]) -> float:
    """Return `rise` of the number of steps since AT, and 0 before AT."""
    return rise(step - AT) if step >= AT else 0.0


def test_fast_spike_is_detected_in_its_second_line() -> None:
    noise = make_noise()
    detected = detect(lambda step: (calm(step) + after(step, lambda n: 3 * math.exp(-n / 3))) * noise())
    assert [loss_shape for _, loss_shape in detected] == [LossShape.SPIKE, LossShape.CALM]
    assert (detected[0][0], detected[1][0] < 20) == (1, True)


def test_single_odd_line_is_no_spike() -> None:
    noise = make_noise()
    assert list_shapes(lambda step: (calm(step) + 3 * (step == AT)) * noise()) == []


def test_slow_spike_is_distinguished() -> None:
    noise = make_noise()
    shapes = list_shapes(lambda step: (calm(step) + after(step, lambda n: 3 * math.exp(-n / 40))) * noise())
    assert shapes == [LossShape.SPIKE, LossShape.SLOW, LossShape.CALM]


def test_partial_recovery_is_a_new_level() -> None:
    noise = make_noise()
    shapes = list_shapes(lambda step: (calm(step) + after(step, lambda n: 3 * math.exp(-n / 10) + 0.3)) * noise())
    assert shapes == [LossShape.SPIKE, LossShape.SLOW, LossShape.SETTLED]


def test_spike_followed_by_a_rise_diverges() -> None:
    noise = make_noise()
    rise = lambda n: 3 * math.exp(-n / 10) + 0.3 + 0.01 * max(0, n - 30)  # noqa: E731
    shapes = list_shapes(lambda step: (calm(step) + after(step, rise)) * noise(), 550)[:3]
    assert shapes == [LossShape.SPIKE, LossShape.SLOW, LossShape.DIVERGING]


def test_divergence_without_a_spike_is_detected_early() -> None:
    noise = make_noise()
    detected = detect(lambda step: (calm(step) + after(step, lambda n: 0.003 * n)) * noise(), 600)
    assert [loss_shape for _, loss_shape in detected] == [LossShape.SETTLED, LossShape.DIVERGING]
    assert (detected[0][0] < 90, detected[1][0] < 130) == (True, True)  # 0.25 and 0.4 above 2.3


def test_jump_to_another_level_is_detected() -> None:
    noise = make_noise()
    shapes = list_shapes(lambda step: (calm(step) + after(step, lambda _: 0.25)) * noise())
    assert shapes == [LossShape.SPIKE, LossShape.SLOW, LossShape.SETTLED]


@pytest.mark.parametrize("share", [0.08, 0.15, 0.3])
@pytest.mark.parametrize("noise_share", [0.01, 0.05])
def test_permanent_rise_is_reported_for_good(share: float, noise_share: float) -> None:
    noise = make_noise(share=noise_share)
    late = lambda step: calm(10_000 + step) * (1 + after(step, lambda _: share)) * noise()  # noqa: E731
    detected = detect(late, 1400)
    assert detected[-1][1] is LossShape.SETTLED
    assert min(line for line, loss_shape in detected if loss_shape is not LossShape.CALM) <= 100


@pytest.mark.parametrize("share", [0.1, 0.15])
def test_rise_amid_a_fast_fall_is_reported(share: float) -> None:
    noise = make_noise(share=0.02)
    fast = lambda step: 40 * (step + 100) ** -0.4 * (1 + after(step, lambda _: share)) * noise()  # noqa: E731
    assert [lines for lines, _ in detect(fast) if 0 <= lines <= 100]


def test_slow_rise_is_reported() -> None:
    noise = make_noise()
    creep = lambda step: calm(step) * (1 + min(0.1, max(0, step - 900) / 6000)) * noise()  # noqa: E731
    assert LossShape.SETTLED in list_shapes(creep, 1700)


def test_other_mixture_of_the_data_is_calm() -> None:
    noise = make_noise(share=0.015)
    assert list_shapes(lambda step: calm(5000 + step) * (1 + after(step, lambda _: 0.03)) * noise(), 2000) == []


@pytest.mark.parametrize("loss", [0.0, 2.123])
def test_loss_that_is_always_the_same_is_stuck(loss: float) -> None:
    noise = make_noise()
    assert detect(lambda step: loss if step >= AT else calm(step) * noise(), 900) == [(19, LossShape.STUCK)]


def test_loss_of_few_digits_is_not_stuck() -> None:
    noise = make_noise(share=0.001)
    assert list_shapes(lambda step: round(calm(9000 + step) * noise(), 2), 3000) == []


def test_rise_is_over_once_the_loss_is_back() -> None:
    noise = make_noise()
    hill = lambda step: calm(step) * (1 + (0.15 if AT <= step < AT + 500 else 0)) * noise()  # noqa: E731
    assert list_shapes(hill, 1200)[-2:] == [LossShape.SETTLED, LossShape.CALM]


def test_accepted_level_is_calm() -> None:
    noise = make_noise()
    lines = [Iteration(step=step, loss=(2.0 if step < AT else 2.4) * noise()) for step in range(1, 1000)]
    curve = advance(LossState(), lines)
    assert shape(curve) is LossShape.SETTLED
    curve = replace(curve, long_level=accept_level(curve.long_level))
    assert shape(advance(curve, [Iteration(step=step, loss=2.4 * noise()) for step in range(1000, 1600)])) is CALM


def test_sudden_improvement_is_ok() -> None:
    noise = make_noise()
    assert list_shapes(lambda step: (4 - after(step, lambda n: 1.5 * (1 - math.exp(-n / 30)))) * noise()) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinite_loss_are_detected_at_once(bad: float) -> None:
    noise = make_noise()
    detected = detect(lambda step: bad if AT <= step < AT + 3 else calm(step) * noise())
    assert detected == [(0, LossShape.NAN), (3, LossShape.CALM)]


def test_zero_gradient_is_detected() -> None:
    lines = [Iteration(step=step, loss=2.0, grad_norm=0.2 if step < AT else 0.0) for step in range(1, AT + 5)]
    assert list(_detect(lines))[-1] == (AT + 2, LossShape.DEAD)


def test_missing_gradient_norm_is_ok() -> None:
    assert list_shapes(lambda _: 2.0) == []


def test_rollback_discards_later_steps() -> None:
    noise = make_noise()
    spike = (Iteration(step=step, loss=calm(step) + after(step, lambda _: 3.0)) for step in range(1, AT + 30))
    repeated = (Iteration(step=step, loss=calm(step) * noise()) for step in range(AT - 100, AT + 100))
    detected = list(_detect(itertools.chain(spike, repeated)))
    shapes = [loss_shape for _, loss_shape in detected]
    assert shapes == [CALM, LossShape.SPIKE, LossShape.SLOW, LossShape.LEARNING, CALM]
    assert detected[-2][0] == AT - 100


def test_rollback_by_900_lines_does_not_diverge() -> None:
    noise = make_noise()
    run = (Iteration(step=step, loss=calm(step) * noise()) for step in range(1, 1501))
    repeated = (Iteration(step=step, loss=calm(step) * noise()) for step in range(600, 1501))
    assert {loss_shape for _, loss_shape in _detect(itertools.chain(run, repeated))} <= {CALM, LossShape.LEARNING}


def test_rollback_before_a_rise_ends_the_rise() -> None:
    noise = make_noise()
    run = (Iteration(step=step, loss=calm(step) * (1 + after(step, lambda _: 0.1)) * noise()) for step in range(1, 901))
    curve = advance(LossState(), run)
    assert shape(curve) is LossShape.SETTLED
    assert not advance(curve, [Iteration(step=350, loss=calm(350))]).long_level.is_raised


def resume_in_trouble(rise: Callable[[int], float], *, at: int, back: int = 7) -> tuple[LossState, LossState]:
    """Return the state at step `at` of a run with a rise, and after a line of an attempt `back` steps earlier."""
    noise = make_noise()

    def line(step: int) -> Iteration:
        return Iteration(step=step, loss=(calm(step) + after(step, rise)) * noise())

    curve = advance(LossState(), map(line, range(1, at)))
    return curve, advance(curve, [line(at - back)])


def test_resumed_attempt_ends_no_slow_recovery() -> None:
    before, resumed = resume_in_trouble(lambda _: 3.0, at=AT + 60)
    assert (shape(before), shape(resumed)) == (LossShape.SLOW, LossShape.SLOW)
    assert resumed.spike_step == AT


@pytest.mark.parametrize("back", [7, 250])
def test_resumed_attempt_lowers_no_permanent_rise(back: int) -> None:
    before, resumed = resume_in_trouble(lambda n: min(n, 300) / 300 * 0.9, at=AT + 420, back=back)
    assert (shape(before), shape(resumed)) == (LossShape.SETTLED, LossShape.SETTLED)
    assert resumed.long_level.rise_share == before.long_level.rise_share > 0.2


def test_resumed_attempt_ends_no_divergence() -> None:
    before, resumed = resume_in_trouble(lambda n: n / 100, at=AT + 145)
    assert (shape(before), shape(resumed)) == (LossShape.DIVERGING, LossShape.DIVERGING)


def test_resumed_attempt_without_a_gradient_stays_dead() -> None:
    lines = [Iteration(step=step, loss=2.0, grad_norm=0.3 if step < 90 else 0.0) for step in range(1, 100)]
    curve = advance(LossState(), lines)
    assert shape(advance(curve, lines[-5:-4])) is LossShape.DEAD
    assert shape(advance(curve, lines[50:55])) is CALM


def test_spike_between_two_cycles_is_kept() -> None:
    noise = make_noise()
    rise = lambda n: 3 * math.exp(-n / 3)  # noqa: E731
    lines = [Iteration(step=step, loss=(calm(step) + after(step, rise)) * noise()) for step in range(1, 600)]
    curve = advance(LossState(), lines)
    assert shape(curve) is CALM
    assert [(passed.shape, passed.step) for passed in curve.passed] == [(LossShape.SPIKE, AT)]
    assert advance(curve, [Iteration(step=600, loss=calm(600))]).passed == ()


@pytest.mark.parametrize("loss", [5.0, math.nan])
def test_incident_that_was_visible_is_not_kept(loss: float) -> None:
    lines = [Iteration(step=step, loss=loss if AT <= step < AT + 10 else 2.0) for step in range(1, 600)]
    curve = advance(LossState(), lines[: AT + 4])
    assert shape(curve) is not CALM
    assert advance(curve, lines[AT + 4 :]).passed == ()


def test_nan_between_two_cycles_is_kept() -> None:
    lines = [Iteration(step=step, loss=math.nan if AT <= step < AT + 5 else 2.0) for step in range(1, 600)]
    (passed,) = advance(LossState(), lines).passed
    assert (passed.shape, passed.lines, passed.step) == (LossShape.NAN, 5, AT + 5)


def test_saved_state_is_continued() -> None:
    noise = make_noise()
    lines = [Iteration(step=step, loss=(calm(step) + after(step, lambda _: 1.0)) * noise()) for step in range(1, 450)]
    at_once = advance(LossState(), lines)
    loss_state = advance(LossState(), lines[:410])
    assert advance(recall(LossState, to_fields(loss_state)), lines[410:]) == at_once


@pytest.mark.parametrize("fields", [None, 3, "x", {}, {"points": [1]}, {"points": [], "recent": [], "colour": 1}])
def test_invalid_saved_state_is_discarded(fields: object) -> None:
    assert recall(LossState, fields) in (None, LossState())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.002, 0.01, 0.05])
def test_calm_curve_has_no_shapes(seed: int, share: float) -> None:
    noise = make_noise(seed, share)
    assert list_shapes(lambda step: calm(step) * noise(), 3000) == []


def test_heavy_tailed_noise_has_no_shapes() -> None:
    dice = random.Random(5)

    def student() -> float:
        return dice.gauss(0, 1) / math.sqrt(sum(dice.gauss(0, 1) ** 2 for _ in range(5)) / 5)

    assert list_shapes(lambda step: calm(step) * (1 + 0.02 * student()), 3000) == []


def grpo(step: int, dice: random.Random) -> float:
    """Return the loss of a policy gradient, as trl prints it: zero at first, then more and more."""
    return round(max(0, step - 150) * 2e-5 * (1 + dice.gauss(0, 0.3)), 4)


@pytest.mark.parametrize("grad_norm", [0.09, None])
def test_policy_gradient_that_learns_is_calm(grad_norm: float | None) -> None:
    dice = random.Random(1)
    lines = (Iteration(step=step, loss=grpo(step, dice), grad_norm=grad_norm) for step in range(1, 3000))
    assert {loss_shape for _, loss_shape in _detect(lines)} == {CALM}


def test_policy_gradient_around_zero_that_drifts_is_calm() -> None:
    dice = random.Random(1)
    lines = (Iteration(step=step, loss=-0.2 + step * 1e-4 + dice.gauss(0, 0.02)) for step in range(1, 4000))
    assert {loss_shape for _, loss_shape in _detect(lines)} == {CALM}


def test_policy_gradient_that_explodes_is_reported() -> None:
    dice = random.Random(1)
    lines = (Iteration(step=step, loss=grpo(step, dice) + (step > 900) * 4.0) for step in range(1, 940))
    assert [loss_shape for _, loss_shape in _detect(lines)][-2:] == [LossShape.SPIKE, LossShape.SLOW]


def test_few_zero_losses_hide_no_rise() -> None:
    """A batch without labels has a loss of zero; some logs show no gradient."""
    noise = make_noise()
    losses = [calm(step) * noise() * (1.15 if step > 3000 else 1) for step in range(1, 3600)]
    losses[400::700] = [0.0] * len(losses[400::700])
    lines = (Iteration(step=step, loss=loss) for step, loss in enumerate(losses, 1))
    assert [loss_shape for _, loss_shape in _detect(lines)][-1] is LossShape.SETTLED


def test_loss_of_zero_without_a_gradient_keeps_the_level() -> None:
    noise = make_noise()
    good = [Iteration(step=step, loss=calm(step) * noise(), grad_norm=0.3) for step in range(1, 500)]
    collapsed = [Iteration(step=step, loss=0.0, grad_norm=math.nan) for step in range(500, 530)]
    curve = advance(LossState(), [*good, *collapsed])
    assert curve.has_level
    assert curve.long_level.batches
