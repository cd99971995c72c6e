"""Checkpoints over topologies, precisions and families: reshaped, exported, killed while saving, and timed."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from opsctl.trainer import manifest
from tests.endurance.kills.kill_points import Cut
from tests.integration.trainer.conftest import ROOT, tiny
from tests.support.cases import read_table

pytest.importorskip("deepspeed")

from opsctl.trainer.checkpoint.rewrite import copy_for_any_topology

pytestmark = pytest.mark.torch
GROUPED = {"family": "llama", "kv_heads": 2, "ffn": 80, "head_width": 12}
FAMILIES = {
    "gpt2": {"family": "gpt2"},
    "bloom": {"family": "bloom"},
    "llama": GROUPED,
    "qwen2": GROUPED | {"tied": True, "qkv_bias": True, "head_width": 8},
    "qwen3": GROUPED | {"qk_norm": True},
}
TOPOLOGIES = read_table(__file__, "topologies")


def tool(*words) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-m", "opsctl.trainer.checkpoint", *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def config(topology: str, *, family: str = "gpt2", precision: str = "fp32", **changes) -> dict:
    pipeline, tensor, _ = TOPOLOGIES[topology]
    return tiny(
        precision=precision,
        model=FAMILIES[family] | {"layers": 6, "hidden": 32, "heads": 4, "sequence": 32},
        parallel={"pipeline": pipeline, "tensor": tensor, "sequence_parallel": topology.endswith(".sp")},
        **changes,
    )


def world(topology: str) -> int:
    pipeline, tensor, data = TOPOLOGIES[topology]
    return pipeline * tensor * data


@pytest.fixture(scope="module")
def written(trains):
    """Trains of twenty steps by topology, family and precision, each run once."""
    made: dict[tuple, object] = {}

    def of(topology: str, family: str = "gpt2", precision: str = "fp32"):
        key = (topology, family, precision)
        if key not in made:
            made[key] = trains(**config(topology, family=family, precision=precision))
            attempt = made[key].start(world=world(topology))
            assert attempt.finish() == [0] * world(topology), attempt.log
        return made[key]

    return of


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("change", read_table(__file__, "changes"), ids=" ".join)
def test_another_topology_goes_on_with_the_same_losses(written, train, change, precision, capsys):
    before, after, family = change
    source = written(before, family, precision)
    run = train(**config(after, family=family, precision=precision))
    shutil.copytree(source.checkpoints / "step-0000010", run.checkpoints / "step-0000010")
    attempt = run.start(world=world(after))
    assert attempt.finish() == [0] * world(after), attempt.log
    whole = source.attempts[0].losses
    assert sorted(attempt.losses) == list(range(11, 21))
    largest = max(abs(float(loss) - float(whole[step])) for step, loss in attempt.losses.items())
    with capsys.disabled():
        print(f"\n{family} {precision} {before} to {after}: losses differ by {largest:.1e} at most")  # noqa: T201 - figures
    assert largest <= (2e-6 if precision == "fp32" else 2e-3)


def copy_until_killed(source, saved, at: int) -> bool:
    """Copy a checkpoint in a process that is killed before its effect number `at`; return whether it had so many."""
    if child := os.fork():
        return os.waitpid(child, 0)[1] != 0
    sys.addaudithook(Cut(at, after=False, lines=()).hook)
    copy_for_any_topology(source, saved)
    os._exit(0)


def test_copy_is_the_same_wherever_an_attempt_was_killed(written, tmp_path):
    origin = written("pp2.tp2").checkpoints / "step-0000010"
    saved, copies = manifest.read_manifest(origin), []
    for at in itertools.count(1):
        source = shutil.copytree(origin, tmp_path / str(at) / origin.name)
        is_killed = copy_until_killed(source, saved, at)
        copies.append(manifest.read_manifest(copy_for_any_topology(source, saved)))
        if not is_killed:  # as from the first on
            break
    print(f"\na copy killed before each of its {at - 1} effects, and made again: the same bytes")  # noqa: T201 - the figure
    assert at > 8
    assert all(copied == copies[-1] for copied in copies)


@pytest.mark.parametrize("family", ["bloom", "qwen3"])
@pytest.mark.parametrize(("before", "after"), [("pp2.tp2", "pp2.tp2.sp"), ("pp2.tp2.sp", "pp2.tp2")])
def test_sequence_parallelism_may_change_at_a_resume(written, train, before, after, family):
    """Nothing of it is in a checkpoint."""
    source = written(before, family)
    run = train(**config(after, family=family))
    run.adopt(source)
    shutil.rmtree(run.checkpoints / "step-0000020")
    attempt = run.start(world=4)
    assert attempt.finish() == [0] * 4, attempt.log
    whole = source.attempts[0].losses
    assert sorted(attempt.losses) == list(range(11, 21))
    assert max(abs(float(loss) / float(whole[step]) - 1) for step, loss in attempt.losses.items()) <= 1e-6


def test_precision_may_change_with_the_topology(written, train):
    source = written("pp2.dp2", "gpt2", "fp32")
    run = train(**config("one", precision="bf16"))
    tool("reshape", source.checkpoints / "step-0000010", run.checkpoints)
    attempt = run.start(world=1)
    assert attempt.finish() == [0], attempt.log
    whole = source.attempts[0].losses
    assert max(abs(float(loss) - float(whole[step])) for step, loss in attempt.losses.items()) < 0.02


def test_export_in_bf16_loads(written, tmp_path):
    transformers = pytest.importorskip("transformers")
    source = written("pp2.tp2", "bloom")
    tool("export", source.checkpoints / "step-0000020", tmp_path / "half", "--bf16")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto")
    assert {str(parameter.dtype) for parameter in model.parameters()} == {"torch.bfloat16"}


HEAVY = {"layers": 4, "hidden": 512, "heads": 4, "sequence": 32}  # 12.7 M parameters, 180 MB
SAVED = r"saved checkpoint \S+ in ([\d.]+) s; training stood still for ([\d.]+) s"


def test_a_background_save_stalls_training_for_a_tenth_of_a_synchronous_one(train, capsys):
    """The first save of an attempt also waits for memory, so the second and third count."""
    stalls = {}
    for background in (False, True):
        run = train(
            **tiny(
                steps=12,
                precision="bf16",
                model=HEAVY,
                parallel={"pipeline": 1},
                batch={"micro_batch": 4, "global_batch": 16},
                checkpoint={"every": 3, "keep_last": 2, "background": background},
            )
        )
        attempt = run.start(world=1)
        assert attempt.finish(timeout=300) == [0], attempt.log
        stalls[background] = [float(stall) for _, stall in re.findall(SAVED, attempt.log)][:3]
    ratio = min(stalls[True][1:]) / min(stalls[False][1:])
    with capsys.disabled():
        print(f"\nstalls: in the background {stalls[True]}, synchronous {stalls[False]}: {ratio:.1%}")  # noqa: T201 - figures
    assert ratio <= 0.10


def test_killed_in_the_midst_of_a_save_the_one_before_is_resumed(train):
    run = train(**tiny(steps=1000, precision="bf16", model=HEAVY, checkpoint={"every": 0}))
    attempt = run.start(world=2)
    attempt.wait_for_step(1)
    save = run.arm("save")
    attempt.wait_for(lambda: not save.exists(), "the first save")
    [first] = manifest.list_checkpoints(run.checkpoints)
    run.arm("save")
    attempt.wait_for(lambda: any(run.checkpoints.glob(".saving-*/*")), "the second save to write")
    os.kill(attempt.pids[time.time_ns() % 2], signal.SIGKILL)
    attempt.finish(timeout=60)
    assert manifest.list_checkpoints(run.checkpoints) == [first]

    run.config |= {"steps": first.step + 2, "accept": True}
    (run.run_dir / "save").unlink(missing_ok=True)
    attempt = run.start(world=2)
    assert attempt.finish() == [0, 0], attempt.log
    assert f"resumed from checkpoint {first.path.name}" in attempt.log
    assert not list(run.checkpoints.glob(".saving-*"))
