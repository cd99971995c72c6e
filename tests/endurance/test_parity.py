"""However the model, its matrices and its batches are cut: the losses of one plain torch loop, step by step."""

import functools
from itertools import product

import numpy as np
import pytest

from tests.integration.trainer.conftest import tiny

pytest.importorskip("deepspeed")

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.indexed_corpus import Corpus, write_corpus
from opsctl.trainer.prepare import main as prepare
from tests.support.cases import read_table
from tests.support.conversations import make_pairs, write_pairs
from tests.support.plain_trainer import train as train_plainly
from tests.support.plain_trainer import train_on_pairs
from tests.support.trainer_ranks import run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

MODEL = {"layers": 6, "hidden": 32, "heads": 4, "sequence": 32}
GROUPED = {"family": "llama", "kv_heads": 2, "head_width": 12, "ffn": 80, "rope_theta": 500.0}
STRETCH = {"kind": "llama3", "factor": 4.0, "original_sequence": 16}
FAMILIES = {
    "gpt2": {"family": "gpt2"},
    "bloom": {"family": "bloom"},
    "llama": {"family": "llama"},
    "llama-grouped": GROUPED | {"qkv_bias": True, "rope_scaling": STRETCH},
    "llama-tied": {"family": "llama", "tied": True, "qk_norm": True},
}
CUTS = read_table(__file__, "cuts")
STEPS = 10
SUMS_IN_ANOTHER_ORDER = 1e-6
"""Two units in the last place of these losses."""


def given(corpus, family, **changes):
    data, optimizer = {"prefix": str(corpus)}, {"clip": 0.3}
    return tiny(steps=STEPS, model=MODEL | FAMILIES[family], data=data, optimizer=optimizer, parallel={}) | changes


@pytest.fixture(scope="module")
def plain(corpus):
    """Losses and norms of the plain loop by family, each computed once."""
    return functools.cache(lambda family: train_plainly(TrainerConfig.model_validate(given(corpus, family))))


def is_possible(case):
    """Return whether every tensor rank has a whole group of heads."""
    cut, family = case
    return CUTS[cut][1].get("tensor", 1) <= FAMILIES[family].get("kv_heads", 4)


@pytest.mark.parametrize(("cut", "family"), list(filter(is_possible, product(CUTS, FAMILIES))))
def test_losses_of_every_cut_match_a_plain_loop(plain, corpus, tmp_path, cut, family):
    world, parallel = CUTS[cut]
    losses, norms = plain(family)
    ranks = run_ranks(tmp_path, world, given(corpus, family, parallel=parallel))
    assert len({tuple(rank["losses"]) for rank in ranks}) == 1
    assert min(norms) > 0.3  # and clipped at 0.3
    furthest = max(abs(a - b) for a, b in zip(ranks[0]["losses"], losses, strict=True))
    apart = max(abs(a / b - 1) for a, b in zip(ranks[0]["norms"], norms, strict=True))
    print(f"\n{cut} {family}: losses within {furthest:.2g}, norms within {apart:.2g} of themselves")  # noqa: T201 - the figure
    assert furthest <= SUMS_IN_ANOTHER_ORDER
    assert apart <= 1e-6


@pytest.mark.parametrize("cut", ["pp1", "pp2", "tp2", "pp2-tp2", "tp2-sp", "pp2-tp2-sp"])
def test_recomputed_activations_are_the_same_to_the_bit(corpus, tmp_path, cut):
    world, parallel = CUTS[cut]
    config = given(corpus, "gpt2", parallel=parallel, model=MODEL | {"dropout": 0.1})
    first = run_ranks(tmp_path / "first", world, config)
    again = run_ranks(tmp_path / "again", world, config | {"recompute": True})
    assert [rank["last"] for rank in again] == [rank["last"] for rank in first]


def test_dropout_does_not_depend_on_stages_or_data_parallel_ranks(corpus, tmp_path):
    config = given(corpus, "gpt2", model=MODEL | {"dropout": 0.1})
    cuts = ("pp1", "pp2", "dp2", "pp2-dp2")
    results = {cut: run_ranks(tmp_path / cut, CUTS[cut][0], config | {"parallel": CUTS[cut][1]}) for cut in cuts}
    for cut in cuts:
        furthest = max(abs(a - b) for a, b in zip(results[cut][0]["losses"], results["pp1"][0]["losses"], strict=True))
        print(f"\n{cut} with dropout: losses within {furthest:.2g} of one process")  # noqa: T201 - the figure
        assert furthest <= SUMS_IN_ANOTHER_ORDER


@pytest.mark.parametrize("cut", ["pp2", "tp2", "pp2-tp2", "pp2-dp2", "tp2-sp", "pp2-tp2-sp"])
@pytest.mark.parametrize("family", ["gpt2", "bloom", "llama-grouped"])
def test_separate_documents_are_the_same_on_every_cut(corpus, tmp_path, cut, family):
    """The index travels from stage to stage beside the activations, also with recomputation."""
    world, parallel = CUTS[cut]
    tokens = Corpus(str(corpus)).tokens
    lines = np.split(tokens, np.flatnonzero(tokens == ord("\n")) + 1)
    write_corpus(lines, tmp_path / "lines", vocabulary=264)
    data = {"prefix": str(tmp_path / "lines")}
    config = given(corpus, family, data=data | {"separate_documents": True}, steps=5)
    one = run_ranks(tmp_path / "one", 1, config)
    mixed = run_ranks(tmp_path / "mixed", 1, config | {"data": data})
    ranks = run_ranks(tmp_path / "cut", world, config | {"parallel": parallel, "recompute": True})
    furthest = max(abs(a - b) for a, b in zip(ranks[0]["losses"], one[0]["losses"], strict=True))
    print(f"\n{cut} {family}, documents apart: losses within {furthest:.2g} of one process")  # noqa: T201 - the figure
    assert furthest <= SUMS_IN_ANOTHER_ORDER
    assert one[0]["losses"] != mixed[0]["losses"]


@pytest.mark.parametrize("cut", ["tp2", "tp2-sp", "pp2-dp2"])
def test_packed_conversations_train_as_each_alone(tmp_path, cut):
    """A step reads all conversations, so that the order of the packed sequences does not matter."""
    world, parallel = CUTS[cut]
    pairs = make_pairs(24)
    write_pairs(tmp_path / "chats.jsonl", pairs)
    assert prepare(["--input", str(tmp_path / "chats.jsonl"), "--output", str(tmp_path / "chats"), "--chat", "32"]) == 0
    samples = Corpus(str(tmp_path / "chats")).samples(32)
    data = {"prefix": str(tmp_path / "chats"), "separate_documents": True}
    model = MODEL | FAMILIES["llama-tied"] | {"layers": 2}
    batch = {"micro_batch": 1, "global_batch": samples}
    config = given(tmp_path / "chats", "llama-tied", data=data, steps=3, batch=batch, model=model)
    losses = train_on_pairs(TrainerConfig.model_validate(config), pairs)
    ranks = run_ranks(tmp_path / "cut", world, config | {"parallel": parallel})
    furthest = max(abs(a - b) for a, b in zip(ranks[0]["losses"], losses, strict=True))
    figure = f"{cut}, {samples} packed sequences: losses within {furthest:.2g} of every conversation alone"
    print(f"\n{figure}")  # noqa: T201 - the figure
    assert furthest <= 2 * SUMS_IN_ANOTHER_ORDER
