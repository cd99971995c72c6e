"""Data over whole runs: Megatron's own code reads and writes it, and no layout, kill or resume repeats or drops any."""

import os
import random
import re
import shutil
import signal

import pytest

from opsctl.trainer import manifest
from tests.integration.trainer.conftest import tiny

np = pytest.importorskip("numpy")
pytest.importorskip("deepspeed")

from opsctl.trainer.indexed_corpus import Corpus, write_corpus  # noqa: E402 - after the check that it can be imported

pytestmark = pytest.mark.torch

TABLES = {
    "batch": {"micro_batch": 2, "global_batch": 16, "rampup": [4, 4, 96]},
    "evaluation": {"every": 8, "batches": 2},
    "optimizer": {"lr": 1e-3, "min_lr": 1e-4, "warmup_samples": 40},
}


def documents(vocabulary, count=200):
    draw = np.random.default_rng(7)
    return [draw.integers(0, vocabulary, size=draw.integers(1, 50)) for _ in range(count)]


def test_megatrons_own_code_writes_the_same_bytes_and_reads_ours(tmp_path):
    """Megatron-LM's indexed_dataset.py, as DeepSpeed ships it."""
    vocabulary, dtype = 250880, np.int32
    theirs = pytest.importorskip("deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset")
    import torch  # noqa: PLC0415 - takes a second

    written = documents(vocabulary)
    write_corpus(written, tmp_path / "ours", vocabulary=vocabulary)
    builder = theirs.MMapIndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=dtype)
    for document in written:
        builder.add_item(torch.from_numpy(document))
        builder.end_document()
    builder.finalize(str(tmp_path / "theirs.idx"))
    for end in (".bin", ".idx"):
        assert (tmp_path / f"ours{end}").read_bytes() == (tmp_path / f"theirs{end}").read_bytes()
    read = theirs.MMapIndexedDataset(str(tmp_path / "ours"))
    assert len(read) == len(written)
    assert all((read[n] == document).all() for n, document in enumerate(written))
    assert (Corpus(str(tmp_path / "theirs")).tokens == np.concatenate(written)).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.uint16, np.uint32, np.uint64])
def test_every_type_that_deepspeed_writes_tokens_in_is_read(tmp_path, dtype):
    """Of uint16 and uint64 its copy has other names than Megatron."""
    theirs = pytest.importorskip("deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset")
    builder = theirs.MMapIndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=dtype)
    builder.add_item_numpy(np.array([3, 200, 7], dtype=dtype))
    builder.end_document()
    builder.finalize(str(tmp_path / "x.idx"))
    corpus = Corpus(str(tmp_path / "x"))
    assert (corpus.tokens.dtype, corpus.tokens.tolist()) == (np.dtype(dtype), [3, 200, 7])


def test_documents_of_several_sequences_are_read_as_megatron_writes_them(tmp_path):
    theirs = pytest.importorskip("deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset")
    import torch  # noqa: PLC0415 - takes a second

    builder = theirs.MMapIndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=np.uint16)
    for sentences in ([[1, 2], [3]], [[4]]):
        for sentence in sentences:
            builder.add_item(torch.tensor(sentence))
        builder.end_document()
    builder.finalize(str(tmp_path / "x.idx"))
    assert Corpus(str(tmp_path / "x")).tokens.tolist() == [1, 2, 3, 4]


def mixed(train, corpus, **data):
    """Two corpora by weight, some held out, some passed over."""
    other = train.run_dir / "corpus-of-others"
    for suffix in (".bin", ".idx", ".json"):
        shutil.copyfile(f"{corpus}{suffix}", f"{other}{suffix}")
    parts = [{"prefix": str(corpus), "weight": 3.0}, {"prefix": str(other), "weight": 1.0}]
    train.config["data"] = {"held_out": 0.1, "skip_samples": ["20-29", "100-100"], "blend": parts} | data
    return train


def finished(train, world):
    attempt = train.start(world=world)
    assert attempt.finish() == [0] * world, attempt.log
    return attempt


def evaluations(attempt):
    return [float(loss) for loss in re.findall(r"validation loss at iteration \d+ \| .*?: (\S+)", attempt.log)]


@pytest.fixture(scope="session")
def alone(trains, corpus):
    """Without dropout, on one process."""
    model = {"layers": 2, "hidden": 32, "heads": 2, "sequence": 32}
    return finished(mixed(trains(**tiny(**TABLES, model=model, parallel={"pipeline": 1})), corpus), 1)


@pytest.mark.parametrize(("pipeline", "world"), [(1, 2), (2, 2), (2, 4)], ids=["dp2", "pp2", "pp2-dp2"])
def test_a_growing_batch_of_a_blend_is_the_same_on_any_layout(train, corpus, alone, pipeline, world):
    model = {"layers": 2, "hidden": 32, "heads": 2, "sequence": 32}
    attempt = finished(mixed(train(**tiny(**TABLES, model=model, parallel={"pipeline": pipeline})), corpus), world)
    assert attempt.losses.keys() == alone.losses.keys()
    furthest = max(abs(float(attempt.losses[step]) - float(alone.losses[step])) for step in alone.losses)
    evaluated = max(abs(a - b) for a, b in zip(evaluations(attempt), evaluations(alone), strict=True))
    print(f"\n{world} processes: losses within {furthest:.1e}, evaluations within {evaluated:.1e}")  # noqa: T201 - figures
    assert furthest <= 5e-6  # one unit in the sixth digit that the line has, and sums in another order
    assert evaluated <= 5e-6


@pytest.mark.parametrize(("pipeline", "world"), [(1, 2), (2, 2), (2, 4)], ids=["dp2", "pp2", "pp2-dp2"])
def test_killed_in_the_ramp_and_resumed_it_is_as_never_stopped(train, corpus, pipeline, world):
    """With dropout, a blend, evaluations and skipped samples; bit for bit."""
    tables = TABLES | {"parallel": {"pipeline": pipeline}, "checkpoint": {"every": 5}}
    whole = mixed(train(**tiny(**tables)), corpus)
    losses = finished(whole, world).losses
    run = mixed(train(**tiny(**tables)), corpus)
    attempt = run.start(world=world)
    attempt.wait_for_step(random.randint(5, 12))
    os.kill(random.choice(attempt.pids), signal.SIGKILL)
    attempt.finish()
    again = finished(run, world)
    assert again.losses == {step: losses[step] for step in again.losses}
    assert 20 in again.losses
    ends = [manifest.read_manifest(train_run.checkpoints / "step-0000020") for train_run in (whole, run)]
    assert ends[0].files == ends[1].files
    assert ends[0].consumed_samples == ends[1].consumed_samples


def test_other_data_or_seed_after_resume_is_noted(train, corpus):
    run = mixed(train(**tiny(steps=2, parallel={"pipeline": 1})), corpus)
    finished(run, 1)
    run.config |= {"steps": 4, "seed": 99, "accept": True}
    attempt = finished(mixed(run, corpus, held_out=0.2), 1)
    warnings = [note for note in attempt.stop_reason.notes if "samples come in another order" in note]
    assert [note.split()[0] for note in warnings] == ["seed", "data"]
    assert "seed 99 is not the checkpoint's, 1234" in warnings[0]
