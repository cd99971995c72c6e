"""`opsctl checkpoint list`, `verify` and `prune` without torch. The rest: tests/integration/trainer."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opsctl.base.errors import InputError, RunDirError
from opsctl.cli import cli
from opsctl.state.run_dir import RunDir
from opsctl.trainer import manifest
from tests.support.saved_checkpoints import expect_refusal, flip, make_train, make_unreadable, opsctl, save, steps


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A train with checkpoints of the steps 10 to 40."""
    return make_train(tmp_path, monkeypatch)


def test_list_prints_brackets_and_colons_literally(run):
    manifest.keep(run / "checkpoints" / "step-0000020", "[/x] a [red] spike :fire:", by="")
    assert "[/x] a [red] spike :fire:" in opsctl("list", "tiny")


def test_python_of_another_users_train_is_not_run(run, monkeypatch):
    """`export` runs the Python that train.toml names, so only an unwritable file of one's own train is trusted."""
    (run.parent / "torch.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(run.parent))
    program, ran = run / "python", run.parent.parent / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    config = run / "train.toml"
    config.write_text(f'python = "{program}"\n' + config.read_text())
    opsctl("export", "tiny", run.parent.parent / "out")
    assert ran.exists()
    ran.unlink()
    config.chmod(0o666)
    with pytest.raises(RunDirError, match=r"train\.toml: mode 0666 lets others write"):
        opsctl("export", "tiny", run.parent.parent / "out")
    if os.geteuid() == 0:
        os.chown(run, 12345, -1)
        opsctl("export", "tiny", run.parent.parent / "out", code=7)
    assert not ran.exists()


def test_conversions_name_checkpoint_and_target(run, tmp_path):
    """The trainer's own tool does the work, so the words are what it gets."""
    program, words = run / "python", tmp_path / "words"
    program.write_text(f'#!/bin/sh\necho "$@" >>{words}\n')
    program.chmod(0o755)
    config = run / "train.toml"
    config.write_text(f'python = "{program}"\n' + config.read_text())
    (tmp_path / "out").mkdir()
    opsctl("reshape", "tiny", tmp_path / "out", "--step", 20)
    opsctl("reshape", "tiny")
    opsctl("export", "tiny", tmp_path / "half", "--bf16", "--json")
    newest, tool = run / "checkpoints" / "step-0000040", "-P -m opsctl.trainer.checkpoint"
    assert words.read_text().splitlines() == [
        f"{tool} reshape {newest.with_name('step-0000020')} {tmp_path}/out",
        f"{tool} reshape {newest}",
        f"{tool} export {newest} {tmp_path}/half --bf16 --json",
    ]
    words.unlink()
    assert json.loads(opsctl("reshape", "tiny", tmp_path / "out", "--dry-run", "--json"))["source"] == str(newest)
    assert f"would write step-0000040 into {tmp_path}/out" in opsctl("reshape", "tiny", tmp_path / "out", "--dry-run")
    assert not words.exists()
    with pytest.raises(InputError, match="no checkpoint of step 7"):
        opsctl("reshape", "tiny", tmp_path / "out", "--step", 7)


def test_list_shows_problem_and_topology(run):
    manifest.keep(run / "checkpoints" / "step-0000020", "a spike", by="")
    (run / "checkpoints" / "step-0000030" / "layer_00.pt").unlink()
    rows = json.loads(opsctl("list", "tiny", "--json"))
    assert [(row["step"], row["keep_reason"], row["problem"]) for row in rows] == [
        (10, "", ""),
        (20, "a spike", ""),
        (30, "", "a file is missing or too short"),
        (40, "", ""),
    ]
    assert rows[0]["topology"] == "data=2 pipeline=2"
    assert "data=2 pipeline=2" in opsctl("list", "tiny")


def test_verify_reports_a_train_without_checkpoints(run):
    for path in (run / "checkpoints").iterdir():
        shutil.rmtree(path)
    assert opsctl("verify", "tiny") == "tiny: no checkpoints\n"


def test_verify_names_the_damaged_file_and_exits_1(run):
    assert opsctl("verify", "tiny", "--step", 40) == "step-0000040: verified\n"
    flip(run / "checkpoints" / "step-0000020" / "zero" / "0.weight" / "fp32.pt")
    assert opsctl("verify", "tiny", code=1) == (
        "step-0000010: verified\n"
        "step-0000020: damaged\n"
        "  step-0000020: zero/0.weight/fp32.pt has changed since it was written (SHA-256 differs)\n"
        "step-0000030: verified\n"
        "step-0000040: verified\n"
    )
    with pytest.raises(InputError) as caught:
        opsctl("verify", "tiny", "--step", 50)
    assert caught.value.message == "tiny: no checkpoint of step 50; existing checkpoints: step 10, 20, 30, 40"


def test_prune_keeps_the_last_two_verified(run):
    flip(run / "checkpoints" / "step-0000040" / "layer_00.pt")
    damaged = ["step-0000040: layer_00.pt has changed since it was written (SHA-256 differs)"]
    assert expect_refusal("prune", "tiny", "--keep-last", 2, "--dry-run").out.startswith("tiny: would remove step 10, ")
    assert steps(run / "checkpoints") == [10, 20, 30, 40]
    done = expect_refusal("prune", "tiny", "--keep-last", 2, "--json")
    assert (json.loads(done.out)["removed"], json.loads(done.out)["failed"]) == ([10], damaged)
    assert done.error.message == damaged[0]
    assert "opsctl checkpoint verify tiny" in str(done.error.hint)
    assert steps(run / "checkpoints") == [20, 30, 40]
    assert expect_refusal("prune", "tiny", "--keep-last", 2).out == "tiny: nothing to remove\n"


def test_prune_keeps_every_nth_and_pinned_checkpoints(run):
    save(run / "checkpoints", 50)
    manifest.keep(run / "checkpoints" / "step-0000010", "a spike", by="")
    done = json.loads(opsctl("prune", "tiny", "--keep-last", 2, "--keep-every", 20, "--json"))
    assert done["removed"] == [30]


@pytest.mark.parametrize("name", ["COMPLETE", "manifest.json"])
def test_unreadable_checkpoint_does_not_block_the_others(run, tmp_path, name):
    """An unreadable checkpoint is reported, is never removed and does not count as one of the two that stay."""
    save(run / "checkpoints", 50)
    make_unreadable(run / "checkpoints" / "step-0000010", name)
    make_unreadable(run / "checkpoints" / "step-0000040", name)
    rows = json.loads(opsctl("list", "tiny", "--json", code=1))
    assert [row["step"] for row in rows if row["is_unread"] and "File name too long" in row["problem"]] == [10, 40]
    verdicts = json.loads(opsctl("verify", "tiny", "--json", code=1))
    assert [verdict["verdict"] for verdict in verdicts] == ["unknown", "verified", "verified", "unknown", "verified"]

    done = expect_refusal("prune", "tiny", "--keep-last", 2, "--json")
    assert json.loads(done.out)["removed"] == [20]  # 30 and 50 must stay: 40 cannot be verified
    assert [line.partition(", so it is left alone")[0] for line in json.loads(done.out)["failed"]] == [
        "step-0000010: cannot be read",
        "step-0000040: cannot be read",
    ]
    save(run / "checkpoints", 60)
    done = expect_refusal("offload", "tiny", "--to", tmp_path / "archive", "--json")
    result = json.loads(done.out)
    assert (result["copied"], result["removed"]) == ([30, 50, 60], [30])
    assert [f"step-00000{step}0" in line for step, line in zip((1, 4), result["failed"], strict=True)] == [True, True]
    assert sorted(path.name[-2:] for path in (run / "checkpoints").glob("step-*")) == ["10", "40", "50", "60"]


def test_failed_removal_does_not_block_the_others(run):
    """A file occupies the path to which prune moves the first checkpoint."""
    (run / "checkpoints" / ".removing-step-0000010").write_text("")
    done = expect_refusal("prune", "tiny", "--keep-last", 2, "--json")
    assert json.loads(done.out)["removed"] == [20]
    assert "step-0000010: cannot be removed: " in done.error.message
    assert steps(run / "checkpoints") == [10, 30, 40]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that a train named `toy` saves to."""
    monkeypatch.setenv("OPSCTL_ROOT", str(tmp_path / "trains"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run = RunDir(tmp_path / "trains" / "toy")
    run.create()
    saved = tmp_path / "saved"
    command = ["python", "train.py", "--output_dir", str(saved)]
    run.config.write_text(f'name = "toy"\ncommand = {json.dumps(command)}\n[slurm]\nnodes = 1\ntime_limit = "9"\n')
    return saved


def checkpoint_list(*words: str) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", "list", "toy", *words], standalone_mode=False, prog_name="opsctl")


def make(saved: Path, step: int, *names: str) -> None:
    (saved / f"checkpoint-{step}").mkdir(parents=True)
    for name in names:
        (saved / f"checkpoint-{step}" / name).write_text("{}")


def test_states_and_directories_are_listed(saved: Path) -> None:
    make(saved, 10, "trainer_state.json", "model.safetensors")
    make(saved, 20, "training_args.bin")
    result = checkpoint_list()
    assert result.return_value == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:2] for line in lines[1:3]] == [["10", "complete"], ["20", "partial"]]
    assert f"searched: {saved} (--output_dir {saved} in the command)" in result.stdout


def test_json_has_paths_and_reasons(saved: Path) -> None:
    make(saved, 20, "training_args.bin")
    [row] = json.loads(checkpoint_list("--json").stdout)
    assert (row["step"], row["completeness"], row["reason"]) == (
        20,
        "partial",
        "trainer_state.json is missing or empty",
    )
    assert row["path"] == str(saved / "checkpoint-20")


def test_directories_without_checkpoints_are_named(saved: Path) -> None:
    assert "no checkpoints" in checkpoint_list().stdout
    assert f"searched: {saved}" in checkpoint_list().stdout
    assert json.loads(checkpoint_list("--json").stdout) == []


def test_checkpoints_of_which_none_is_complete_are_counted(saved: Path) -> None:
    for step in (10, 20):
        make(saved, step, "training_args.bin")
    words = " ".join(checkpoint_list().stdout.split())
    found = "2 found, none recognised as complete: checkpoint-20: trainer_state.json is missing or empty"
    assert found in words
    make(saved, 30, "trainer_state.json")
    assert "none recognised" not in checkpoint_list().stdout
