"""Loss curves: the shapes that the book shows, made; and calm ones, in which nothing may be seen."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator

import pytest

from opsctl.telemetry.progress.iteration_lines import Iteration
from opsctl.watchdogs.loss_curve import LossShape, LossState, advance, shape

AT = 400
"""Where something happens."""


def calm(step: int) -> float:
    """What a model that learns does."""
    return 1.7 + 8 * (step + 200) ** -0.4


def noisy(seed: int = 3, share: float = 0.01) -> Callable[[], float]:
    dice = random.Random(seed)
    return lambda: 1 + dice.gauss(0, share)


def shapes(loss: Callable[[int], float], steps: int = 1000, *, grad_norm: float = 0.2) -> list[tuple[int, LossShape]]:
    """The shapes that are seen, each with the number of steps from AT to where it is seen first."""
    iterator = _shapes(Iteration(step=step, loss=loss(step), grad_norm=grad_norm) for step in range(1, steps))
    return [(step - AT, loss_shape) for step, loss_shape in iterator if step >= AT - 50]


def _shapes(lines: Iterable[Iteration]) -> Iterator[tuple[int, LossShape]]:
    curve, last = LossState(), LossShape.LEARNING
    for line in lines:
        curve = advance(curve, [line])
        if shape(curve) is not last:
            last = shape(curve)
            yield line.step, last


def kinds(loss: Callable[[int], float], steps: int = 1000) -> list[LossShape]:
    return [loss_shape for _, loss_shape in shapes(loss, steps)]


def after(step: int, rise: Callable[[int], float]) -> float:
    """`rise` of the steps since AT, from there on."""
    return rise(step - AT) if step >= AT else 0.0


def test_a_spike_that_recovers_fast_is_seen_at_once_and_is_over_when_it_is() -> None:
    noise = noisy()
    seen = shapes(lambda step: (calm(step) + after(step, lambda n: 3 * math.exp(-n / 3))) * noise())
    assert [loss_shape for _, loss_shape in seen] == [LossShape.SPIKE, LossShape.CALM]
    assert (seen[0][0], seen[1][0] < 20) == (0, True)


def test_a_spike_that_recovers_slowly_is_told_apart() -> None:
    noise = noisy()
    assert kinds(lambda step: (calm(step) + after(step, lambda n: 3 * math.exp(-n / 40))) * noise()) == [
        LossShape.SPIKE,
        LossShape.SLOW,
        LossShape.CALM,
    ]


def test_a_spike_that_does_not_recover_fully_becomes_another_level() -> None:
    noise = noisy()
    assert kinds(lambda step: (calm(step) + after(step, lambda n: 3 * math.exp(-n / 10) + 0.3)) * noise()) == [
        LossShape.SPIKE,
        LossShape.SLOW,
        LossShape.SETTLED,
        LossShape.CALM,
    ]


def test_a_spike_that_recovers_and_then_rises_diverges() -> None:
    noise = noisy()
    rise = lambda n: 3 * math.exp(-n / 10) + 0.3 + 0.01 * max(0, n - 30)  # noqa: E731
    assert kinds(lambda step: (calm(step) + after(step, rise)) * noise(), 550)[:3] == [
        LossShape.SPIKE,
        LossShape.SLOW,
        LossShape.DIVERGING,
    ]


def test_a_divergence_without_a_spike_is_seen_before_it_is_far() -> None:
    noise = noisy()
    seen = shapes(lambda step: (calm(step) + after(step, lambda n: 0.003 * n)) * noise(), 600)
    assert [loss_shape for _, loss_shape in seen] == [LossShape.DIVERGING]
    assert seen[0][0] < 90  # 0.25 above 2.3


def test_a_loss_that_jumps_to_another_level_because_data_was_repeated_before_is_told() -> None:
    noise = noisy()
    assert kinds(lambda step: (calm(step) + after(step, lambda _: 0.25)) * noise()) == [
        LossShape.SPIKE,
        LossShape.SLOW,
        LossShape.SETTLED,
        LossShape.CALM,
    ]


def test_the_grokking_moment_is_no_alarm() -> None:
    noise = noisy()
    assert kinds(lambda step: (4 - after(step, lambda n: 1.5 * (1 - math.exp(-n / 30)))) * noise()) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_told_at_once(bad: float) -> None:
    noise = noisy()
    assert shapes(lambda step: bad if AT <= step < AT + 3 else calm(step) * noise()) == [
        (0, LossShape.NAN),
        (3, LossShape.CALM),
    ]


def test_a_gradient_that_becomes_zero_is_told() -> None:
    lines = [Iteration(step=step, loss=2.0, grad_norm=0.2 if step < AT else 0.0) for step in range(1, AT + 5)]
    assert list(_shapes(lines))[-1] == (AT + 2, LossShape.DEAD)


def test_a_trainer_that_never_computes_the_gradient_norm_is_no_alarm() -> None:
    assert kinds(lambda _: 2.0) == []


def test_a_rollback_forgets_what_is_not_true_any_more() -> None:
    noise = noisy()
    spike = (Iteration(step=step, loss=calm(step) + after(step, lambda _: 3.0)) for step in range(1, AT + 30))
    again = (Iteration(step=step, loss=calm(step) * noise()) for step in range(AT - 100, AT + 100))
    seen = list(_shapes(itertools.chain(spike, again)))
    assert [loss_shape for _, loss_shape in seen] == [
        LossShape.CALM,
        LossShape.SPIKE,
        LossShape.SLOW,
        LossShape.LEARNING,
        LossShape.CALM,
    ]
    assert seen[-2][0] == AT - 100


def test_what_was_kept_goes_on_where_it_was() -> None:
    noise = noisy()
    lines = [Iteration(step=step, loss=(calm(step) + after(step, lambda _: 1.0)) * noise()) for step in range(1, 450)]
    at_once = advance(LossState(), lines)
    loss_state = advance(LossState(), lines[:410])
    assert advance(LossState.from_json(loss_state.to_json()), lines[410:]) == at_once


@pytest.mark.parametrize("kept", [None, 3, "x", {}, {"points": [1]}, {"points": [], "recent": [], "colour": 1}])
def test_what_was_kept_and_makes_no_sense_is_learnt_again(kept: object) -> None:
    assert LossState.from_json(kept) == LossState()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.002, 0.01, 0.05])
def test_in_a_calm_run_nothing_is_seen(seed: int, share: float) -> None:
    noise = noisy(seed, share)
    assert kinds(lambda step: calm(step) * noise(), 3000) == []


def test_nor_in_one_whose_noise_has_heavy_tails() -> None:
    dice = random.Random(5)

    def student() -> float:
        return dice.gauss(0, 1) / math.sqrt(sum(dice.gauss(0, 1) ** 2 for _ in range(5)) / 5)

    assert kinds(lambda step: calm(step) * (1 + 0.02 * student()), 3000) == []
