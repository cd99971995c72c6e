"""`--dry-run`: the description of a run, compared with published measurements, and its problems."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.trainer import dry_run, footprint
from opsctl.trainer.model_size import model_parameters
from opsctl.trainer.rank_layout import first_layers, layout
from tests.integration.trainer.conftest import ROOT
from tests.support.cases import read_cases

EXAMPLES = sorted(path for path in ROOT.glob("examples/*.toml") if "\n[trainer" in path.read_text())


def run_dry(capsys, path, processes=None):
    status = dry_run.main(Path(path), processes=processes, environ={})
    return status, capsys.readouterr().out


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_passes_its_checks(example, capsys):
    status, text = run_dry(capsys, example)
    assert status == 0, text
    assert "\nchecks     passed\n" in text


@pytest.mark.parametrize(*read_cases(__file__, "examples_have_the_published_size"))
def test_examples_have_the_published_size(example, billions):
    config, _ = dry_run.read(ROOT / "examples" / f"{example}.toml")
    assert model_parameters(config.model) / 1e9 == pytest.approx(billions, rel=0.02)


def test_memory_matches_the_measurement_for_bloom():
    """The prequel (tables of February) measured 59 GB per GPU: 48 nodes, tensor 4, pipeline 12, micro-batch 2.

    BLOOM kept 16-bit gradients beside their fp32 sum, which this trainer frees.
    """
    config, processes = dry_run.read(ROOT / "examples" / "gpt-176b.toml")
    fullest = max(footprint.stages(config, layout(config, processes)), key=lambda stage: stage.total)
    freed = 2 * fullest.parameters * 1.25
    assert (fullest.total + freed) / 1e9 == pytest.approx(59, rel=0.05)


def test_bias_of_alibi_is_in_the_estimate():
    """32 heads x 512 x 8192 in bf16 are 1/4 GiB on every stage, and less on every rank of a tensor-parallel group."""
    config, _ = dry_run.read(ROOT / "examples" / "gpt-176b.toml")
    model = config.model.model_copy(update={"heads": 32, "sequence": 8192, "hidden": 4096})

    def read_activations(family, tensor):
        changed = {"model": model.model_copy(update={"family": family})}
        parallel = config.parallel.model_copy(update={"tensor": tensor})
        changed = config.model_copy(update=changed | {"parallel": parallel})
        return footprint.stages(changed, layout(changed, 48 * tensor))[0].activations

    for tensor in (1, 4):
        assert read_activations("bloom", tensor) - read_activations("gpt2", tensor) == footprint.GIB / 4 / tensor


def test_stages_hold_the_model_once_and_the_embedding_twice():
    config, processes = dry_run.read(ROOT / "examples" / "gpt-176b.toml")
    cut = layout(config, processes)
    parameters = cut.tensor * sum(stage.parameters for stage in footprint.stages(config, cut))
    table = config.model.vocabulary * config.model.hidden
    assert parameters == pytest.approx(model_parameters(config.model) + table, rel=1e-4)
    assert sum(stage.layers for stage in footprint.stages(config, cut)) == 70


def test_named_stages_are_estimated_as_they_are_cut():
    config, processes = dry_run.read(ROOT / "examples" / "gpt-176b.toml")
    blocks = [5, *[6] * 10, 5]
    parallel = config.parallel.model_copy(update={"blocks": blocks})
    named = config.model_copy(update={"parallel": parallel})
    assert [stage.layers for stage in footprint.stages(named, layout(named, processes))] == blocks
    assert first_layers(named) == [0, *range(7, 68, 6), 74]


def test_64_nodes_are_refused_for_13b(capsys):
    status, text = run_dry(capsys, ROOT / "examples" / "gpt-13b.toml", processes=256)
    assert status == 2
    assert "wrong      rampup = [16, 16, 5000000] has batches of 16, 48, 80, 112, 144 and 27 more" in text
    assert "passed" not in text


def test_incomplete_corpus_is_refused_and_absent_one_unknown(tmp_path, capsys):
    train = tmp_path / "t.toml"
    train.write_text(f"[trainer]\nsteps = 1\n[trainer.data]\nprefix = '{tmp_path}/x'\n")
    status, text = run_dry(capsys, train)
    assert status == 0
    assert f"data       {tmp_path}/x: not on this machine, not checked" in text
    (tmp_path / "x.idx").write_bytes(b"MMIDIDX\x00\x00")
    status, text = run_dry(capsys, train)
    assert status == 2
    assert re.search(r"^wrong +corpus .*/x cannot be read", text, re.MULTILINE)


@pytest.mark.parametrize(*read_cases(__file__, "unusable_data_is_refused"))
def test_unusable_data_is_refused(tmp_path, capsys, data, words):
    pytest.importorskip("numpy")
    from opsctl.trainer.prepare import main as prepare  # noqa: PLC0415 - numpy may be absent

    (tmp_path / "in.txt").write_text("x" * 12800)
    prepare(["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "c")])
    train = tmp_path / "t.toml"
    table = f"prefix = '{tmp_path}/c'\n{data}"
    every = int("held_out" in data)
    train.write_text(f"[trainer]\nsteps = 1\nevaluation.every = {every}\n[trainer.data]\n{table}\n")
    status, text = run_dry(capsys, train)
    assert status == 2
    assert words in text
    assert "passed" not in text


def command(*arguments):
    argv = [sys.executable, "-m", "opsctl.trainer", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, timeout=250)


def test_realised_shares_stand_beside_the_requested(tmp_path, capsys):
    """Even a weight of one in a hundred thousand gets its sample; the second stage is a third of the run."""
    train = tmp_path / "t.toml"
    train.write_text(
        "[trainer]\nsteps = 18750\n[trainer.data]\n"
        "blend = [{prefix = '/gone/web', weight = 1.0}, {prefix = '/gone/rare', weight = 1e-5}]\n"
        "stages = [{from_sample = 200000, blend = [{prefix = '/gone/good'}]}]\n"
    )
    _, text = run_dry(capsys, train)
    assert [line.split(": ")[1] for line in text.splitlines() if line.startswith("data ")] == [
        "not on this machine, not checked, 199998 samples, 199998.0 requested",
        "not on this machine, not checked, 2 samples, 2.0 requested",
        "not on this machine, not checked, 100000 samples, 100000.0 requested",
    ]


def test_command_needs_neither_torch_nor_a_gpu():
    hidden = "import sys; sys.modules['torch'] = None; sys.argv[1:] = ['examples/gpt-13b.toml', '--dry-run'];"
    argv = [sys.executable, "-c", f"{hidden} import runpy; runpy.run_module('trainer', run_name='__main__')"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "layout     128 processes = pipeline 4 x tensor 2 x data 16" in done.stdout


def test_unreadable_config_is_refused(tmp_path):
    (tmp_path / "t.toml").write_text("[trainer]\nstepz = 1\n")
    (tmp_path / "d.toml").write_text("[trainer]\nsteps = 2020-01-01\n")
    (tmp_path / "n.toml").write_text("[slurm]\nnodes = 'many'\n[trainer]\nsteps = 1\n")
    for path, words in (
        (tmp_path / "t.toml", "stepz"),
        (tmp_path / "gone.json", "cannot be read"),
        (tmp_path / "d.toml", "steps: must be an integer"),
        (tmp_path / "n.toml", "of [slurm] should be numbers"),
    ):
        done = command(path, "--dry-run")
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_weights_of_another_model_are_a_problem(tmp_path, capsys):
    model = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 264}
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").touch()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(model))
    table = {"family": "bloom", "hidden": 64, "layers": 2, "heads": 4, "vocabulary": 264, "sequence": 64}
    for vocabulary, words in (
        (264, "of this model"),
        (272, "of this model"),
        (256, "vocabulary is 264 there and 256 here"),
    ):
        trainer = {"steps": 1, "weights": str(tmp_path / "hf"), "model": table | {"vocabulary": vocabulary}}
        (tmp_path / "trainer.json").write_text(json.dumps(trainer))
        status, text = run_dry(capsys, tmp_path / "trainer.json", 1)
        assert words in text
        assert status == (2 if vocabulary == 256 else 0)
