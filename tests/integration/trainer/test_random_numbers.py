"""Random numbers that do not depend on the layout: initial weights, by slices, and dropout."""

import pytest

pytest.importorskip("torch")

import torch

from opsctl.trainer import random_numbers
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.random_numbers import Normal
from opsctl.trainer.rank_layout import Layout
from opsctl.trainer.tensor_parallel import Slice, sliced

pytestmark = pytest.mark.torch

MATRIX = Normal(rows=600, columns=900, std=0.5, seed=7)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 60])
def test_slices_join_to_the_same_matrix(size, dim):
    whole = MATRIX.draw(range(MATRIX.columns if dim else MATRIX.rows), dim=dim)
    slices = [sliced(MATRIX, Slice(rank=rank, size=size), dim=dim) for rank in range(size)]
    assert torch.cat(slices, dim=dim).equal(whole)
    assert all(part.is_contiguous() for part in slices)


def test_numbers_are_normal_and_differ_between_blocks():
    drawn = MATRIX.draw(range(600))
    assert abs(float(drawn.mean())) < 0.005
    assert float(drawn.std()) == pytest.approx(0.5, rel=0.01)
    assert len(drawn.unique()) > 0.97 * drawn.numel()  # fp32 has few numbers in the middle of the bell
    assert not drawn.equal(Normal(rows=600, columns=900, std=0.5, seed=8).draw(range(600)))


def test_slice_draws_few_other_rows(monkeypatch):
    drawn = []
    fill = torch.Tensor.normal_
    monkeypatch.setattr(torch.Tensor, "normal_", lambda self, **how: drawn.append(self.numel()) or fill(self, **how))
    matrix = Normal(rows=4096, columns=16, std=1.0, seed=1)
    sliced(matrix, Slice(rank=3, size=8), dim=0)
    assert sum(drawn) == 512 * 16


def test_nothing_is_drawn_where_weights_are_replaced():
    with random_numbers.left_out():
        assert bool(MATRIX.draw(range(600)).isnan().all())
        assert MATRIX.draw(range(10), dim=1).shape == (600, 10)
    assert not bool(MATRIX.draw(range(600)).isnan().any())


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
