"""Dropout depends on seed, sample and layer only."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opsctl.trainer import random_numbers  # noqa: E402 - torch may be absent
from opsctl.trainer.config import TrainerConfig  # noqa: E402 - likewise
from opsctl.trainer.rank_layout import Layout  # noqa: E402 - likewise


def draw(*, seed=1, pipeline=1, data=1, rank=0, consumed=0, turn=0, layer=7):
    """Return the random numbers of a layer for one micro-batch of two samples."""
    config = TrainerConfig.model_validate({"steps": 1, "seed": seed})
    seeds = random_numbers.Seeds(config, Layout(pipeline=pipeline, data=data), rank)
    seeds.start(consumed)
    seeds(random_numbers.BASE * (turn + 2) + 3)
    random_numbers.vary(layer)
    return torch.rand(4).tolist()


def test_dropout_does_not_depend_on_the_layout():
    alone = draw(consumed=16, turn=3)
    assert draw(consumed=16, data=2, rank=1, turn=1) == alone
    assert draw(consumed=16, data=4, rank=3, turn=0) == alone
    assert draw(consumed=16, pipeline=2, data=4, rank=7, turn=0) == alone
    assert draw(consumed=20, turn=1) == alone


def test_layers_samples_and_seeds_have_different_dropout():
    changes = ({}, {"seed": 2}, {"layer": 8}, {"turn": 1}, {"consumed": 16}, {"data": 4, "rank": 3})
    draws = [tuple(draw(**change)) for change in changes]
    assert len(set(draws)) == len(draws)
