"""The chunked loss: equal to torch's, in a part of its memory."""

import pytest

pytest.importorskip("deepspeed")

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from opsctl.trainer import cross_entropy, footprint
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.rank_layout import Layout
from opsctl.trainer.tensor_parallel import Slice

pytestmark = pytest.mark.torch


def chunked(scores, labels):
    return cross_entropy.cross_entropy(scores, labels, Slice())


def whole(scores, labels):
    return functional.cross_entropy(scores.float().flatten(0, 1), labels.flatten())


def differentiate(loss, scores, labels):
    value = loss(scores, labels)
    return value.detach(), torch.autograd.grad(value, scores)[0]


def make_scores(dtype, *, tokens, vocabulary):
    torch.manual_seed(5)
    scores = torch.randn(2, tokens // 2, vocabulary) * 3
    return scores.to(dtype).requires_grad_(), torch.randint(0, vocabulary, (2, tokens // 2))


@pytest.mark.parametrize("chunk", [1, 1000, 1 << 25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradients_equal_those_of_torch(monkeypatch, dtype, chunk):
    monkeypatch.setattr(cross_entropy, "_CACHED_ELEMENTS", chunk)
    scores, labels = make_scores(dtype, tokens=62, vocabulary=301)
    loss, gradients = differentiate(chunked, scores, labels)
    expected_loss, expected = differentiate(whole, scores, labels)
    assert loss.dtype == torch.float32 and gradients.dtype == dtype
    assert float(loss) == pytest.approx(float(expected_loss), abs=1.4e-6)
    tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-5  # two neighbours in bf16
    torch.testing.assert_close(gradients, expected, rtol=tolerance, atol=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_score_that_is_no_number_spoils_the_loss(value):
    scores, labels = make_scores(torch.float32, tokens=4, vocabulary=9)
    with torch.no_grad():
        scores[0, 1, 3] = value
    assert not torch.isfinite(chunked(scores, labels))


def test_large_scores_do_not_overflow():
    scores, labels = make_scores(torch.float32, tokens=4, vocabulary=9)
    assert torch.isfinite(chunked(scores * 1e30, labels))


def test_loss_takes_a_third_of_the_memory():
    """The gradients and two chunks, against fp32 copies of logits, softmax and gradients."""
    scores, labels = make_scores(torch.bfloat16, tokens=512, vocabulary=8192)
    logits = scores.numel() * 2
    assert measure_peak(chunked, scores, labels) < 1.6 * logits
    assert measure_peak(whole, scores, labels) > 4.9 * logits


def test_estimate_of_the_dry_run_covers_the_loss(monkeypatch):
    for module in (footprint, cross_entropy):
        monkeypatch.setattr(module, "CHUNK_ELEMENTS", 1 << 18)
    model = {"sequence": 256, "vocabulary": 8192}
    batch = {"micro_batch": 2, "global_batch": 2}
    config = TrainerConfig.model_validate({"steps": 1, "precision": "bf16", "model": model, "batch": batch})
    scores, labels = make_scores(torch.bfloat16, tokens=512, vocabulary=8192)
    used = scores.numel() * 2 + measure_peak(chunked, scores, labels)
    assert used == pytest.approx(footprint._logits(config, Layout(pipeline=1, data=1)), rel=0.1)


def measure_peak(loss, scores, labels):
    """Return the largest sum of bytes that the loss and its gradient allocate at a time, the logits not counted."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        differentiate(loss, scores, labels)
    used = peak = 0
    for event in sorted(recorded.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            used += event.nbytes()
            peak = max(peak, used)
    return peak
