"""Documents kept apart: tokens see their own document alone, and positions begin anew."""

import functools

import pytest

pytest.importorskip("deepspeed")

import numpy as np
import torch

from opsctl.trainer import attention, families, gpt
from opsctl.trainer.cross_entropy import cross_entropy
from opsctl.trainer.indexed_corpus import Corpus, write_corpus
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.tensor_parallel import Slice
from tests.support.plain_trainer import PlainModel
from tests.support.slice_rank import SavedBytes

pytestmark = pytest.mark.torch

SIZES = {"layers": 2, "hidden": 32, "heads": 4, "sequence": 48, "vocabulary": 64}
VARIANTS = {
    "kv_heads": 2,
    "head_width": 12,
    "ffn": 80,
    "rope_theta": 500.0,
    "window": 11,
    "full": [1],
    "query_width": 20,
    "score_cap": 2.0,
}
"""What a family may have, set where a family has it."""
ENDS = [(7, 8, 31, 48), (48,)]
"""Ends of the documents of two samples."""


def make_config(family, **changes):
    own = {key: value for key, value in VARIANTS.items() if key in families.load(family).keys}
    return ModelConfig.model_validate(SIZES | own | {"family": family} | changes)


def make_starts(length):
    starts = torch.zeros(2, length, dtype=torch.int64)
    for first, last in zip(ENDS[0], ENDS[0][1:], strict=False):
        starts[0, first:last] = first
    return starts


@pytest.fixture(autouse=True)
def _short_runs(monkeypatch):
    """Documents of several runs."""
    monkeypatch.setattr(attention, "_ROWS", 8)
    attention.matrix_of.cache_clear()
    yield
    attention.matrix_of.cache_clear()


def test_starts_of_documents_are_read_from_the_index(tmp_path):
    lengths = [3, 5, 0, 1, 1, 17, 2, 40, 8]
    write_corpus((np.full(length, 7) for length in lengths), tmp_path / "c", vocabulary=264)
    begins = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    corpus = Corpus(str(tmp_path / "c"))
    for sequence in (4, 8, 11):
        for number in range(corpus.samples(sequence)):
            first = number * sequence
            expected = np.maximum(begins[first : first + sequence] - first, 0)
            assert corpus.starts(number, sequence).tolist() == expected.tolist()


@pytest.mark.parametrize("family", families.NAMES)
def test_logits_equal_those_of_separate_documents(family):
    config = make_config(family)
    model = PlainModel(config)
    tokens = torch.randint(64, (2, 48), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        together = model((tokens, make_starts(48)))
        for row, row_ends in enumerate(ENDS):
            for first, end in zip((0, *row_ends), row_ends, strict=False):
                alone = model(tokens[row : row + 1, first:end])
                assert together[row, first:end].allclose(alone[0], atol=2e-6)
        assert not together[0].allclose(model(tokens)[0], atol=1e-3)


def attend_by_mask(plain, q, k, v, starts, _):
    """Return the mixed values by one matrix of all scores of a sample."""
    places = torch.arange(q.shape[2])
    distance = places.unsqueeze(1) - places
    is_seen = (distance >= 0) & (distance < (plain.window or q.shape[2]))
    if starts is not None:
        is_seen = is_seen & (starts.unsqueeze(2) == starts.unsqueeze(1)).unsqueeze(1)
    k, v = (heads.repeat_interleave(plain.queries, dim=1) for heads in (k, v))
    scores = q @ k.transpose(2, 3) * (plain.scale or q.shape[-1] ** -0.5)
    if plain.cap:
        scores = plain.cap * torch.tanh(scores / plain.cap)
    if plain.slopes:
        scores = scores - torch.tensor(plain.slopes).view(-1, 1, 1) * distance
    return scores.masked_fill(~is_seen, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("is_apart", [True, False], ids=["apart", "together"])
@pytest.mark.parametrize("family", families.NAMES)
def test_logits_loss_and_gradients_equal_those_of_a_mask(family, is_apart):
    config = make_config(family)
    model = PlainModel(config)
    tokens, labels = torch.randint(64, (2, 2, 48), generator=torch.Generator().manual_seed(5))
    found = []
    for is_masked in (False, True):
        for block in (layer for layer in model.stack if is_masked and isinstance(layer, gpt.Block)):
            block.attention = functools.partial(attend_by_mask, block.attention)
        logits = model((tokens, make_starts(48)) if is_apart else tokens)
        loss = cross_entropy(logits, labels, Slice())
        found.append([logits.detach(), loss.detach(), *torch.autograd.grad(loss, [*model.parameters()])])
    apart = [float((ours - by_mask).abs().max() / by_mask.abs().max()) for ours, by_mask in zip(*found, strict=True)]
    print(f"\n{family}: logits within {apart[0]:.1e}, loss {apart[1]:.1e}, gradients {max(apart[2:]):.1e}")  # noqa: T201 - the figure
    assert max(apart) <= 4e-6


@pytest.mark.parametrize("family", families.NAMES)
def test_memory_grows_with_the_documents(family):
    """Four times the documents take four times the memory, and one matrix for all of them, which grows no faster."""
    kept = []
    for length in (256, 1024):
        block = PlainModel(make_config(family, sequence=length)).stack[2]
        starts = torch.arange(length) // 32 * 32
        saved = SavedBytes(block.parameters())
        with saved.hooks:
            block((torch.randn(1, length, 32), starts.expand(1, -1)))
        kept.append(saved.total)
    assert kept[1] <= 4.01 * kept[0]
