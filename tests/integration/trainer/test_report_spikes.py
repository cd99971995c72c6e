"""Detection of loss spikes."""

import random

from opsctl.trainer.config_tables import SpikeConfig
from opsctl.trainer.loss_spikes import Spikes

NOISE = random.Random(7)


def draw_losses(number, level=3.0):
    return [level + NOISE.uniform(-0.1, 0.1) for _ in range(number)]


def find_spikes(losses, **changes):
    spikes = Spikes(SpikeConfig(**({"window": 20} | changes)))
    return [number for number, loss in enumerate(losses) if spikes.add_loss(loss)]


def test_spike_is_reported_once_with_numbers():
    spikes = Spikes(SpikeConfig(window=20))
    assert not any(map(spikes.add_loss, draw_losses(40)))
    text = spikes.add_loss(5.0)
    assert text.startswith("loss spike: 5.0000 is ")
    assert text.endswith("the mean of the 20 steps before")
    assert not any(map(spikes.add_loss, (4.9, 4.0, 3.9)))  # the end of the same spike


def test_next_spike_is_reported_again():
    assert find_spikes([*draw_losses(40), 5.0, 4.5, *draw_losses(5), 6.0]) == [40, 47]


def test_losses_that_stay_high_become_normal():
    assert find_spikes([*draw_losses(40), *draw_losses(60, level=6.0), 9.0]) == [40, 100]


def test_falling_loss_and_first_steps_are_no_spikes():
    assert find_spikes([9 - 0.05 * n for n in range(150)]) == []
    assert find_spikes([9.0, *draw_losses(5), 9.0, *draw_losses(10)]) == []


def test_equal_losses_leave_room_for_noise():
    assert find_spikes([*[2.0] * 40, 2.05, 2.11, 2.2]) == [42]


def test_disabled_detection_reports_nothing():
    assert find_spikes([*draw_losses(40), 50.0], deviations=0) == []
    assert find_spikes([*draw_losses(40), float("nan"), float("inf")]) == []
