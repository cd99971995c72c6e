"""Twenty steps are ten, a restart and ten, to the bit, and as many as there were before a kill: for every cut."""

import os
import random
import shutil
import signal
from typing import Any

import pytest

from opsctl.trainer import manifest
from tests.integration.trainer.conftest import tiny
from tests.support.cases import read_table

pytest.importorskip("deepspeed")

from tests.support.trainer_ranks import run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

CUTS: dict[str, tuple[int, dict[str, Any]]] = read_table(__file__, "cuts")
TIED = "tied_modules.embedding.weight"
RAMP = {"micro_batch": 2, "global_batch": 16, "rampup": [4, 4, 96]}
"""The batch grows four times, the last after the restart."""


KINDS = {
    "gpt2-fp32": ("fp32", {"family": "gpt2"}),
    "bloom-bf16": ("bf16", {"family": "bloom"}),
    "llama-bf16": ("bf16", {"family": "llama", "kv_heads": 2, "ffn": 80, "qk_norm": True}),
    "llama-tied-fp32": ("fp32", {"family": "llama", "tied": True, "qkv_bias": True}),
}


def given(cut, kind, **changes):
    precision, family = KINDS[kind]
    model = family | {"layers": 6, "hidden": 32, "heads": 4, "sequence": 32, "dropout": 0.1}
    return tiny(precision=precision, model=model, batch=RAMP, parallel=CUTS[cut][1], **changes)


def files(run):
    return manifest.read_manifest(run.checkpoints / manifest.directory_name(20)).files


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", CUTS)
def test_twenty_steps_are_ten_and_ten_and_any_kill_between(trains, train, cut, kind):
    world = CUTS[cut][0]
    whole = trains(**given(cut, kind))
    attempt = whole.start(world)
    assert attempt.finish() == [0] * world, attempt.log
    expected = attempt.losses
    assert sorted(expected) == list(range(1, 21))

    resumed = train(**given(cut, kind))
    resumed.adopt(whole)
    shutil.rmtree(resumed.checkpoints / manifest.directory_name(20))
    attempt = resumed.start(world)
    assert attempt.finish() == [0] * world, attempt.log
    assert attempt.losses == {step: expected[step] for step in range(11, 21)}
    assert files(resumed) == files(whole)

    killed = train(**given(cut, kind, checkpoint={"every": 3}))
    attempt = killed.start(world)
    attempt.wait_for_step(random.randint(1, 15))
    os.kill(random.choice(attempt.pids), signal.SIGKILL)
    assert 0 not in attempt.finish(timeout=60)
    again = killed.start(world)
    assert again.finish() == [0] * world, again.log
    assert attempt.losses | again.losses == expected
    assert files(killed) == files(whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", CUTS)
def test_weights_and_optimizer_of_every_rank_are_loaded_as_they_were_saved(corpus, tmp_path, cut, kind):
    """By hash of what is in memory: a loss that jumps after a restart has no other way in."""
    world, parallel = CUTS[cut]
    config = given(cut, kind, data={"prefix": str(corpus)})
    saved = run_ranks(tmp_path, world, config, steps=5, save=True)
    loaded = run_ranks(tmp_path, world, config, steps=1, resume=True)
    assert [rank["first"] for rank in loaded] == [rank["last"] for rank in saved]
    ends = parallel.get("pipeline", 1) > 1
    per_stage = world // parallel.get("pipeline", 1)
    for first, last in zip(loaded[:per_stage], loaded[-per_stage:], strict=True) if ends else ():
        for when in ("first", "last"):  # as loaded, and a step later
            assert (TIED in first[when]) is (TIED in last[when]) is (kind != "llama-bf16")
            assert first[when].get(TIED) == last[when].get(TIED)


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_longer_samples_go_on_with_the_same_state(corpus, tmp_path, family):
    """A run that is stretched to a longer context."""
    model = {"family": family, "layers": 2, "hidden": 32, "heads": 4, "sequence": 32}
    config = tiny(model=model, parallel={}, data={"prefix": str(corpus)})
    saved = run_ranks(tmp_path, 1, config, steps=3, save=True)
    longer = config | {"model": model | {"sequence": 64}, "accept": True}
    loaded = run_ranks(tmp_path, 1, longer, steps=2, resume=True)
    assert loaded[0]["first"] == saved[0]["last"]
    assert loaded[0]["losses"][-1] < saved[0]["losses"][0]
