"""Hostile entries in checkpoint directories, hostile logs and hostile commands, of any trainer."""

import json
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from opsctl.checkpoints import offload
from opsctl.checkpoints.completeness import Completeness, read_small
from opsctl.checkpoints.scan import list_checkpoints_in, scan_directories, size_of
from opsctl.checkpoints.trainer_command.shell import MAX_WORD_CHARS, split_command
from opsctl.checkpoints.trainer_command.value_files import read_values
from opsctl.guard.escalation import reads_stop_request
from opsctl.guard.progress_signs import SignsOfProgress, read_attempt_progress
from opsctl.state.files import find_matches
from opsctl.telemetry.progress.iteration_lines import sampled, tail
from opsctl.telemetry.progress.last_lines import LastLines, read_last_lines
from opsctl.telemetry.progress.signs import LogSigns, read_log_signs
from tests.support.finalized_trains import QueuedTrain

MAX_S = 5.0


@pytest.fixture(autouse=True)
def limit():
    """Every attack costs at most MAX_S of processor time."""
    began = time.process_time()
    yield
    assert time.process_time() - began < MAX_S


@pytest.mark.attack("the name of a file in a checkpoint fills the memory of every reader")
@pytest.mark.parametrize("rank", ["9" * 12, "9" * 100])
def test_huge_rank_in_a_name_is_a_gap(tmp_path, rank):
    checkpoint = tmp_path / "global_step10"
    checkpoint.mkdir()
    (tmp_path / "latest").write_text("global_step10")
    (checkpoint / f"mp_rank_{rank}_model_states.pt").write_text("x")
    scan = scan_directories([tmp_path])
    assert [found.completeness for found in scan.partial] == [Completeness.PARTIAL]
    assert scan.partial[0].reason == "the file of rank 0 is missing"


@pytest.mark.attack("thousands of shards in a checkpoint take minutes of every reader")
def test_shards_are_counted_once(tmp_path):
    checkpoint = tmp_path / "checkpoint-10"
    checkpoint.mkdir()
    for number in range(1, 6001):
        (checkpoint / f"model-{number:05d}-of-06000.safetensors").touch()
    scan_directories([tmp_path])


@pytest.mark.attack("the name of a file takes minutes of every reader of checkpoints")
@pytest.mark.parametrize("mark", ["-", "_", "-_", ".-"])
def test_long_name_fits_a_layout_in_bounded_time(tmp_path, mark):
    (tmp_path / f"model1{mark * 28}!").touch()
    assert scan_directories([tmp_path]).newest is None


@pytest.mark.attack("an index of millions of objects fills the memory of every reader")
def test_index_of_many_objects_is_not_parsed(tmp_path):
    checkpoint = tmp_path / "checkpoint-10"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text("{}")
    bomb = '{"weight_map": {}, "more": [' + "{}," * 1_000_000 + "{}]}"
    (checkpoint / "model.safetensors.index.json").write_text(bomb)
    tracemalloc.start()
    scan_directories([tmp_path])
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 32 << 20


@pytest.mark.attack("a link named latest shows the text of a private file")
def test_link_named_latest_is_not_read(tmp_path):
    private = tmp_path / "private"
    private.write_text("password 12")
    directory = tmp_path / "checkpoints"
    (directory / "global_step10").mkdir(parents=True)
    (directory / "global_step10" / "mp_rank_00_model_states.pt").write_text("x")
    (directory / "latest").symlink_to(private)
    assert read_small(directory / "latest") is None
    assert "password" not in repr(scan_directories([directory]))


@pytest.mark.attack("a pipe in a checkpoint directory hangs every reader")
def test_pipes_in_a_checkpoint_directory_do_not_block(tmp_path):
    checkpoint = tmp_path / "checkpoint-10"
    checkpoint.mkdir()
    for path in (tmp_path / "latest", tmp_path / "epoch=1-step=10.ckpt", checkpoint / "trainer_state.json"):
        os.mkfifo(path)
    os.mkfifo(checkpoint / "model.safetensors.index.json")
    assert not any(found.is_complete for found in list_checkpoints_in([tmp_path]))


@pytest.mark.attack("a deep tree of directories ends every reader")
def test_deep_tree_is_measured(tmp_path):
    depth, here = 1200, os.getcwd()
    os.chdir(tmp_path)
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(here)
    try:
        assert size_of(tmp_path)[1] == depth + 1
    finally:
        path = tmp_path / Path(*["d"] * depth)
        for _ in range(depth):  # pytest removes directories by recursion
            path.rmdir()
            path = path.parent


def test_matches_are_bounded(tmp_path):
    for number in range(20):
        (tmp_path / f"rank_{number}").mkdir()
        (tmp_path / f"rank_{number}" / "x.pt").touch()
    assert len(list(find_matches(tmp_path, "rank_*/*.pt"))) == 20
    assert len(list(find_matches(tmp_path, "rank_*/*.pt", max_entries=5))) == 5
    assert list(find_matches(tmp_path, "rank_1/x.pt")) == [tmp_path / "rank_1" / "x.pt"]
    assert list(find_matches(tmp_path / "absent", "*")) == []


@pytest.mark.attack("a link in the destination of a copy leads the copy to another file")
def test_copy_follows_no_link(tmp_path):
    source, victim, target = tmp_path / "source", tmp_path / "victim", tmp_path / "target"
    source.write_text("data")
    victim.write_text("mine")
    target.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        offload._copy_file(source, target, "0" * 64)
    assert victim.read_text() == "mine"


@pytest.mark.attack("variables of a command that name each other fill the memory of every reader")
def test_variables_do_not_grow(tmp_path):
    words = ["A0=" + "x" * 100] + [f"A{n}=" + f"$A{n - 1}" * 20 for n in range(1, 60)]
    assert max(map(len, split_command(words))) <= MAX_WORD_CHARS
    assert split_command(["x " * 200_000]) == []


@pytest.mark.attack("a deep YAML file takes minutes of every reader without libyaml")
def test_deep_yaml_is_read_in_bounded_time_without_libyaml(tmp_path, monkeypatch):
    monkeypatch.delattr("yaml.CSafeLoader")
    (tmp_path / "a.yaml").write_text("[" * 1_000_000)
    assert read_values(tmp_path / "a.yaml") == {}


@pytest.mark.attack("a YAML file runs a program when it is read")
@pytest.mark.parametrize(
    "value", ["!!python/object/apply:os.mkdir [marker]", "!!python/name:os.system", "!new:os.system x", "!!binary eA=="]
)
def test_yaml_constructs_no_object(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(f"a: {value}\nsave: /x\n")
    assert read_values(tmp_path / "a.yaml") == {"save": ("/x",)}
    assert not (tmp_path / "marker").exists()


def test_configuration_of_a_linked_file_is_read(tmp_path):
    (tmp_path / "real.json").write_text(json.dumps({"out": "x"}))
    (tmp_path / "a.json").symlink_to("real.json")
    assert read_values(tmp_path / "a.json") == {"out": ("x",)}


@pytest.mark.attack("a pipe as a log or as a script hangs guard and status")
def test_pipes_do_not_block_the_guard(train: QueuedTrain):
    attempt = train.start_attempt()
    train.run.logs.mkdir(exist_ok=True)
    train.run.main_log.unlink(missing_ok=True)
    os.mkfifo(train.run.main_log)
    train.run.body.unlink(missing_ok=True)
    os.mkfifo(train.run.body)
    assert read_last_lines(train.run.main_log, 0) == LastLines()
    assert read_log_signs(train.run.main_log) == LogSigns()
    assert tail(train.run.main_log, 5) == sampled(train.run.main_log) == []
    assert not reads_stop_request(train.run)
    assert read_attempt_progress(train.run, attempt, None) == SignsOfProgress(new_checkpoint=False)
