"""Checkpoints of other trainers. `pytest tests/unit/checkpoints/test_layouts.py`"""

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from opsctl.checkpoints.completeness import Completeness
from opsctl.checkpoints.layouts import load_layouts
from opsctl.checkpoints.scan import list_checkpoints_in, scan_directories
from tests.support.cases import read_cases, read_table

CORPUS = Path("tests/corpus/checkpoint-layouts/layouts.jsonl")
RECORDS = [json.loads(line) for line in CORPUS.read_text().splitlines()]
NAMES = [f"{record['trainer']}: {record['form']}" for record in RECORDS]
STEPLESS = {
    "torch-dcp: torch.distributed.checkpoint",
    "nanogpt: one file",
    "lightning: on the requeue signal",
    "accelerate: automatic names",
}
"""Their names state no step."""
NEMO = "model_name--val_loss=2.91-step=499-consumed_samples=256000.0-last"
NEWEST = {
    "latest_checkpointed_iteration.txt": "500",
    "latest": "global_step500",
    "latest_universal": "global_step500_universal",
    "latest.txt": "500",
}
ALTERNATIVES = {
    "lightning: DeepSpeed or FSDP strategy": (
        "epoch=1-step=500.ckpt/.metadata and *.distcp and meta.pt (FSDP, sharded)",
    ),
    "olmo: sharded and unsharded": ("latest -> step1000", "latest-unsharded -> step1000-unsharded"),
}
"""Files that belong to another form, or links that stand for no checkpoint of their own."""


def archive(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", "weights" * 100)


def list_files(record: dict[str, object]) -> list[str]:
    """Return the files of a record; `a/b.pt, c.pt` are two files of one directory."""
    files: list[str] = []
    for text in record["files"]:  # type: ignore[attr-defined]  # a list in every record
        first, *more = text.split(", ")
        is_list = bool(more) and " " not in text.replace(", ", "")
        files += [first, *(f"{first.rpartition('/')[0]}/{name}" for name in more)] if is_list else [text]
    return files


def build(record: dict[str, object], top: Path) -> None:
    """Make the files of a record, as its trainer would."""
    name = f"{record['trainer']}: {record['form']}"
    for text in list_files(record):
        if text in ALTERNATIVES.get(name, ()) or "is-incomplete" in text or "marker" in text:
            continue
        path = top / text.replace("…-last/", f"{NEMO}/").split()[0].replace("…", "part").rstrip(",")
        for shard in range(2, 5) if "-00001-of-00004" in path.name else ():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(path.name.replace("00001", f"{shard:05d}")).write_text("data")
        if "*" in path.name:
            path = path.with_name(path.name.replace("*", "part"))
        if path.suffix in {".pt", ".ckpt"} and not path.exists():
            archive(path)
        elif not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}" if path.suffix == ".json" else NEWEST.get(path.name, "data"))


@pytest.mark.parametrize("record", RECORDS, ids=NAMES)
def test_whole_checkpoint_is_complete(record: dict[str, object], tmp_path: Path) -> None:
    build(record, tmp_path)
    if record["form"] == "checkpoint on SIGTERM" or "as hf-trainer" in str(record["form"]):
        for name in ("trainer_state.json", "training_args.bin"):
            (next(tmp_path.glob("checkpoint-*")) / name).write_text("{}")
    scan = scan_directories([tmp_path])
    assert scan.newest is not None, [found.reason for found in scan.partial]
    assert scan.newest.is_complete
    name = f"{record['trainer']}: {record['form']}"
    assert (scan.newest.step is None) == (name in STEPLESS)


def test_corpus_has_every_trainer() -> None:
    assert len(RECORDS) >= 30
    assert all(layout.source for layout in load_layouts())


CUTS = read_table(__file__, "cuts")


@pytest.mark.parametrize(("entry", "missing", "name"), CUTS, ids=[f"{cut[2]}, {cut[1][0]}" for cut in CUTS])
def test_cut_off_checkpoint_is_partial(entry: str, missing: list[str], name: str, tmp_path: Path) -> None:
    build(RECORDS[NAMES.index(name)], tmp_path)
    for path in missing:
        (tmp_path / path).unlink()
    found = next(found for found in list_checkpoints_in([tmp_path]) if found.path.name == entry)
    assert found.completeness is Completeness.PARTIAL
    assert all(checkpoint.path != found.path for checkpoint in [scan_directories([tmp_path]).newest] if checkpoint)


def test_empty_metadata_is_partial(tmp_path: Path) -> None:
    build(RECORDS[NAMES.index("torchtitan: DCP")], tmp_path)
    (tmp_path / "outputs/checkpoint/step-500/.metadata").write_text("")
    assert scan_directories([tmp_path]).newest is None


def test_marker_makes_partial(tmp_path: Path) -> None:
    build(RECORDS[NAMES.index("nemo2: distributed")], tmp_path)
    checkpoint = next(path for path in tmp_path.iterdir() if path.is_dir())
    (tmp_path / f"{checkpoint.name}-unfinished").touch()
    assert scan_directories([tmp_path]).newest is None


def test_earlier_checkpoint_counts_while_the_next_is_written(tmp_path: Path) -> None:
    build(RECORDS[NAMES.index("megatron-lm: torch_dist")], tmp_path)
    later = tmp_path / "iter_0000600"
    shutil.copytree(tmp_path / "iter_0000500", later)
    scan = scan_directories([tmp_path])
    assert scan.newest is not None
    assert scan.newest.step == 500
    assert [found.step for found in scan.partial] == [600]
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("600")
    newest = scan_directories([tmp_path]).newest
    assert newest is not None
    assert newest.step == 600


def test_checkpoint_counts_while_the_tracker_is_rewritten(tmp_path: Path) -> None:
    build(RECORDS[NAMES.index("megatron-lm: torch_dist")], tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("")
    scan = scan_directories([tmp_path])
    assert scan.partial == ()
    assert scan.newest is not None
    assert scan.newest.is_complete


def test_missing_shard_is_partial(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-5"
    checkpoint.mkdir()
    for name in ("trainer_state.json", "model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"):
        (checkpoint / name).write_text("{}")
    assert scan_directories([tmp_path]).newest is None
    (checkpoint / "model-00002-of-00003.safetensors").write_text("{}")
    assert scan_directories([tmp_path]).newest is not None


def test_indexed_shard_is_needed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint-5"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text("{}")
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part-a.safetensors"}}))
    found = scan_directories([tmp_path]).partial
    assert [checkpoint.reason for checkpoint in found] == ["part-a.safetensors is missing"]


def test_gap_in_ranks_is_partial(tmp_path: Path) -> None:
    checkpoint = tmp_path / "global_step7"
    checkpoint.mkdir()
    (tmp_path / "latest").write_text("global_step7")
    for rank in (0, 2):
        (checkpoint / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_text("x")
    assert [found.reason for found in scan_directories([tmp_path]).partial] == ["the file of rank 1, 0 is missing"]


def test_cut_off_archive_is_partial(tmp_path: Path) -> None:
    path = tmp_path / "epoch=1-step=32.ckpt"
    archive(path)
    assert [found.completeness for found in list_checkpoints_in([tmp_path])] == [Completeness.COMPLETE]
    os.truncate(path, path.stat().st_size - 30)
    scan = scan_directories([tmp_path])
    assert (scan.newest, scan.partial[0].reason) == (None, "cut off")


def test_unknown_layout_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "step_40.state").write_text("a trainer of one's own")
    scan = scan_directories([tmp_path])
    assert scan.newest is not None
    assert (scan.newest.step, scan.newest.completeness) == (40, Completeness.UNKNOWN)


def test_directories_without_checkpoints_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("version_0", "d20", "20240501", "2024-05-01_12-00-00", "wandb/run-20240501_1234-abc"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "hparams.yaml").write_text("a: 1")
    scan = scan_directories([tmp_path])
    assert (scan.newest, scan.partial) == (None, ())


def test_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step_9.pt")
    os.mkfifo(tmp_path / "latest")
    found = list_checkpoints_in([tmp_path])
    assert [checkpoint.completeness for checkpoint in found] == [Completeness.UNKNOWN]


def test_missing_directory_is_no_problem(tmp_path: Path) -> None:
    scan = scan_directories([tmp_path / "absent"])
    assert (scan.newest, scan.problems, scan.is_whole) == (None, (), True)


@pytest.mark.parametrize(*read_cases(__file__, "same_names_of_another_trainer_are_unknown"))
def test_same_names_of_another_trainer_are_unknown(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("a trainer of one's own")
    newest = scan_directories([tmp_path]).newest
    assert newest is not None
    assert (newest.step, newest.completeness) == (40, Completeness.UNKNOWN)


def test_hf_checkpoint_without_state_is_partial_beside_a_whole_one(tmp_path: Path) -> None:
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "config.json").write_text("{}")
    (tmp_path / "checkpoint-5" / "trainer_state.json").write_text("{}")
    scan = scan_directories([tmp_path])
    assert scan.newest is not None
    assert (scan.newest.step, [found.step for found in scan.partial]) == (5, [10])


@pytest.mark.parametrize(*read_cases(__file__, "temporary_name_is_not_the_newest_checkpoint"))
def test_temporary_name_is_not_the_newest_checkpoint(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"weights")
    (tmp_path / "step_400.pt").write_bytes(b"weights")
    newest = scan_directories([tmp_path]).newest
    assert newest is not None
    assert newest.path.name == "step_400.pt"


@pytest.mark.parametrize(*read_cases(__file__, "other_file_with_a_step_is_no_checkpoint"))
def test_other_file_with_a_step_is_no_checkpoint(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"a picture")
    assert scan_directories([tmp_path]).newest is None


@pytest.mark.parametrize("name", ["model.h5", "weights.keras", "state.msgpack", "pytorch_model.bin"])
def test_weights_of_any_framework_are_found(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"weights")
    assert scan_directories([tmp_path]).newest is not None


@pytest.mark.parametrize("name", ["training_args.bin", "vocab.pkl", "train_data.npz", "metrics.h5", "model-config.pt"])
def test_data_and_settings_are_no_weights(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("data")
    assert scan_directories([tmp_path]).newest is None


@pytest.mark.parametrize("name", ["model.bin", "last.pt", "train_state.pkl", "checkpoint.tar", "train.h5"])
def test_file_of_weights_is_a_checkpoint(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("weights")
    assert scan_directories([tmp_path]).newest is not None
