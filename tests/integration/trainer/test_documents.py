"""Documents kept apart: tokens see their own document alone, and positions begin anew."""

import pytest

pytest.importorskip("deepspeed")

import numpy as np
import torch

from opsctl.trainer import gpt
from opsctl.trainer.architecture import layers
from opsctl.trainer.documents import visible
from opsctl.trainer.indexed_corpus import Corpus, write_corpus
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.tensor_parallel import Slice

pytestmark = pytest.mark.torch

SIZES = {"layers": 2, "hidden": 32, "heads": 4, "sequence": 24, "vocabulary": 64}
FAMILIES = {
    "gpt2": {"family": "gpt2"},
    "llama": {"family": "llama", "kv_heads": 2, "ffn": 80, "qk_norm": True, "rope_theta": 500.0},
    "llama-tied": {"family": "llama", "ffn": 80, "tied": True},
}


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


def compute_logits(modules, config, carried):
    x = carried
    with torch.no_grad():
        for module in modules[:-1]:
            x = module(x)
        return gpt.logits(modules[0], x) if config.is_tied else modules[-1](x)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_separate_documents(family):
    config = ModelConfig.model_validate(SIZES | FAMILIES[family])
    modules = [spec.build() for spec in layers(config, seed=3, part=Slice())]
    tokens = torch.randint(64, (2, 24), generator=torch.Generator().manual_seed(5))
    ends = [(7, 8, 24), (24,)]
    starts = torch.zeros(2, 24, dtype=torch.int64)
    starts[0, 7], starts[0, 8:] = 7, 8
    together = compute_logits(modules, config, (tokens, starts))
    for row, row_ends in enumerate(ends):
        for first, end in zip((0, *row_ends), row_ends, strict=False):
            alone = compute_logits(modules, config, tokens[row : row + 1, first:end])
            assert together[row, first:end].allclose(alone[0], atol=2e-6)
    assert not together[0].allclose(compute_logits(modules, config, tokens)[0], atol=1e-3)


def test_mask_is_causal_within_a_document():
    mask = visible(torch.tensor([[0, 0, 2, 2]]))[0, 0].int().tolist()
    assert mask == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
