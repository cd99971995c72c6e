"""`opsctl checkpoint`, on files alone: list, verify, prune. What needs torch is in tests/integration/trainer."""

import json
import os
import shutil
from pathlib import Path

import pytest

from opsctl.errors import InputError, RunDirError
from opsctl.trainer import manifest
from tests.support.saved_checkpoints import flip, make_train, opsctl, refused, save, shut, steps


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A train with checkpoints of the steps 10 to 40."""
    return make_train(tmp_path, monkeypatch)


def test_brackets_and_colons_in_a_list_are_what_they_are(run):
    manifest.keep(run / "checkpoints" / "step-0000020", "[/x] a [red] spike :fire:")
    assert "[/x] a [red] spike :fire:" in opsctl("list", "tiny")


def test_the_interpreter_that_another_users_train_names_is_not_run(run, monkeypatch):
    """Whoever may read a checkpoint may export it, by their own Python."""
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


def test_a_list_tells_size_and_place_of_each(run):
    manifest.keep(run / "checkpoints" / "step-0000020", "a spike")
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


def test_verify_says_that_there_is_nothing_to_verify(run):
    for path in (run / "checkpoints").iterdir():
        shutil.rmtree(path)
    assert opsctl("verify", "tiny") == "tiny: no checkpoints\n"


def test_verify_names_what_is_damaged_and_exits_1(run):
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


def test_prune_never_removes_the_last_two_that_verify(run):
    flip(run / "checkpoints" / "step-0000040" / "layer_00.pt")
    damaged = ["step-0000040: layer_00.pt has changed since it was written (SHA-256 differs)"]
    assert refused("prune", "tiny", "--keep-last", 2, "--dry-run").out.startswith("tiny: would remove step 10, ")
    assert steps(run / "checkpoints") == [10, 20, 30, 40]
    done = refused("prune", "tiny", "--keep-last", 2, "--json")
    assert (json.loads(done.out)["removed"], json.loads(done.out)["failed"]) == ([10], damaged)
    assert done.error.message == damaged[0]
    assert "opsctl checkpoint verify tiny" in str(done.error.hint)
    assert steps(run / "checkpoints") == [20, 30, 40]
    assert refused("prune", "tiny", "--keep-last", 2).out == "tiny: nothing to remove\n"


def test_prune_keeps_every_nth_and_what_is_kept_for_study(run):
    save(run / "checkpoints", 50)
    manifest.keep(run / "checkpoints" / "step-0000010", "a spike")
    done = json.loads(opsctl("prune", "tiny", "--keep-last", 2, "--keep-every", 20, "--json"))
    assert done["removed"] == [30]


@pytest.mark.parametrize("name", ["COMPLETE", "manifest.json"])
def test_one_that_cannot_be_looked_into_keeps_no_verb_from_the_others(run, tmp_path, name):
    """It is named with what to do, counts for none of the two that stay, and goes nowhere."""
    save(run / "checkpoints", 50)
    shut(run / "checkpoints" / "step-0000010", name)
    shut(run / "checkpoints" / "step-0000040", name)
    rows = json.loads(opsctl("list", "tiny", "--json", code=1))
    assert [row["step"] for row in rows if row["is_unread"] and "File name too long" in row["problem"]] == [10, 40]
    verdicts = json.loads(opsctl("verify", "tiny", "--json", code=1))
    assert [verdict["verdict"] for verdict in verdicts] == ["unknown", "verified", "verified", "unknown", "verified"]

    done = refused("prune", "tiny", "--keep-last", 2, "--json")
    assert json.loads(done.out)["removed"] == [20]  # of 30 and 50 both are needed: 40 may be no good
    assert [line.partition(", so it is left alone")[0] for line in json.loads(done.out)["failed"]] == [
        "step-0000010: cannot be read",
        "step-0000040: cannot be read",
    ]
    save(run / "checkpoints", 60)
    done = refused("offload", "tiny", "--to", tmp_path / "archive", "--json")
    told = json.loads(done.out)
    assert (told["copied"], told["removed"]) == ([30, 50, 60], [30])
    assert [f"step-00000{step}0" in line for step, line in zip((1, 4), told["failed"], strict=True)] == [True, True]
    assert sorted(path.name[-2:] for path in (run / "checkpoints").glob("step-*")) == ["10", "40", "50", "60"]


def test_a_removal_that_fails_keeps_the_others_from_nothing(run):
    """A file has taken the place to which the first is moved."""
    (run / "checkpoints" / ".removing-step-0000010").write_text("")
    done = refused("prune", "tiny", "--keep-last", 2, "--json")
    assert json.loads(done.out)["removed"] == [20]
    assert "step-0000010: cannot be removed: " in done.error.message
    assert steps(run / "checkpoints") == [10, 30, 40]
