"""Files of a launch: those of its command, and corpora and tokenizers by their headers and descriptions."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from opsctl.preflight import corpus_files
from opsctl.preflight.command_files import find_misplaced_paths, find_started_words
from opsctl.settings.loader import TrainSettings, parse
from opsctl.trainer.indexed_corpus import write_corpus
from tests.support.cases import read_cases


def find(tmp_path: Path, command: list[str], setup: dict[str, object], extra: tuple[str, ...] = ()) -> dict[str, bool]:
    """Return the missing files of a command, and whether the command certainly needs them."""
    run, base = tmp_path / "run", tmp_path / "base"
    for directory in (run, base):
        directory.mkdir(exist_ok=True)
    (run / "train.py").touch()
    (base / "near.py").touch()
    fields = {"name": "t", "command": command, "setup": setup, "slurm": {"nodes": 1, "time_limit": "5"}}
    train = parse(TrainSettings, fields, "train.toml")
    return {path.path: path.is_needed for path in find_misplaced_paths(train, run, base, extra)}


@pytest.mark.parametrize(*read_cases(__file__, "file_that_certainly_misses_is_needed"))
def test_file_that_certainly_misses_is_needed(
    tmp_path: Path, command: list[str], setup: dict[str, object], missing: dict[str, bool]
) -> None:
    if "torchrun" in command[0]:
        setup = {**setup, "modules": ["torch"]}
    assert find(tmp_path, command, setup) == missing


def test_container_option_hides_files(tmp_path: Path) -> None:
    assert find(tmp_path, ["python3", "gone.py"], {}, ("--container-image=a.sqsh",)) == {}


def test_started_words_of_an_empty_command() -> None:
    assert find_started_words([]) == set()


@pytest.mark.parametrize("vocabulary", [257, 70_000])
def test_corpus_is_read_from_its_header(tmp_path, vocabulary):
    documents = [np.arange(5), np.arange(1000), np.arange(7)]
    write_corpus(documents, tmp_path / "c", vocabulary=vocabulary, facts={"tokenizer": "bytes"})
    corpus_facts = corpus_files.read(tmp_path / "c", "c")
    assert (corpus_facts.tokens, corpus_facts.width, corpus_facts.vocabulary) == (
        1012,
        2 if vocabulary < 65500 else 4,
        vocabulary,
    )
    assert (corpus_facts.tokenizer, corpus_facts.missing, corpus_facts.problem) == ("bytes", (), "")


def test_packed_corpus_states_its_sequence(tmp_path):
    rows = np.stack((np.arange(8), np.ones(8)))
    write_corpus([rows], tmp_path / "c", vocabulary=257, facts={"sequence": 8}, is_packed=True)
    assert corpus_files.read(tmp_path / "c", "c").packed == 8
    (tmp_path / "c.learnt").write_bytes(b"\0")
    assert "c.learnt has 1 bytes, and should have 8" in corpus_files.read(tmp_path / "c", "c").problem
    (tmp_path / "c.learnt").unlink()
    assert corpus_files.read(tmp_path / "c", "c").missing == ("c.learnt",)


def test_truncated_corpus_data_is_a_problem(tmp_path):
    write_corpus([np.arange(1000)], tmp_path / "c", vocabulary=257)
    os.truncate(tmp_path / "c.bin", 1500)
    assert corpus_files.read(tmp_path / "c", "c").problem == "c.bin has 1500 bytes, but its index records 2000"


def test_truncated_corpus_index_is_a_problem(tmp_path):
    write_corpus([np.arange(1000)], tmp_path / "c", vocabulary=257)
    os.truncate(tmp_path / "c.idx", 40)
    assert (
        corpus_files.read(tmp_path / "c", "c").problem
        == "c.idx has 40 bytes, and should have 62: the file is truncated"
    )


def test_invalid_index_is_a_problem(tmp_path):
    (tmp_path / "c.bin").touch()
    (tmp_path / "c.idx").write_text("hello")
    assert corpus_files.read(tmp_path / "c", "c").problem == "c.idx is not an index in Megatron's format"


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ({"type": "BPE", "vocab": {"a": 0, "b": 7}}, 11),
        ({"type": "Unigram", "vocab": [["a", 0.0]] * 20}, 20),
        ({"type": "BPE"}, None),
    ],
)
def test_tokenizer_size_is_the_highest_id_plus_one(tmp_path, model, known):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": [{"id": 10}]}))
    assert corpus_files.tokenizer_size(tmp_path) == known
