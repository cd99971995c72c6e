"""Numbers that are none, planted where the core of the tests does not look."""

import pytest

pytest.importorskip("deepspeed")

from tests.integration.trainer.conftest import tiny
from tests.integration.trainer.test_nan import MODEL
from tests.support.cases import read_cases
from tests.support.trainer_ranks import run_ranks

pytestmark = pytest.mark.torch

CUTS = {
    "pp2": (2, {"pipeline": 2}),
    "tp2": (2, {"tensor": 2}),
    "pp2-tp2": (4, {"pipeline": 2, "tensor": 2}),
    "dp2": (2, {}),
    "pp2-tp2-sp": (4, {"pipeline": 2, "tensor": 2, "sequence_parallel": True}),
}


FAMILIES = {"Block": {}, "LlamaBlock": {"family": "llama", "kv_heads": 2, "ffn": 80, "qk_norm": True}}


@pytest.mark.parametrize("block", FAMILIES)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(*read_cases(__file__, "every_cut_names_the_layer_and_takes_no_step"))
def test_every_cut_names_the_layer_and_takes_no_step(corpus, tmp_path, cut, *, plant, words, block):
    world, parallel = CUTS[cut]
    place = {"step": 3} | plant
    precision, model = place.pop("precision"), MODEL | FAMILIES[block]
    data = {"prefix": str(corpus), "separate_documents": block == "LlamaBlock"}  # which go beside the activations
    config = tiny(steps=4, model=model, precision=precision, parallel=parallel, data=data)
    ranks = run_ranks(tmp_path, world, config, plant=place)
    assert len({rank["fault"] for rank in ranks}) == 1
    assert all(rank["untouched"] and rank["step"] == 3 for rank in ranks)
    assert ranks[0]["fault"].startswith(words.replace("Block", block))
