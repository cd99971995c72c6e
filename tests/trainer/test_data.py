"""Corpora in Megatron's indexed format: written, read, and refused where they are not whole."""

import struct
from itertools import chain

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

from trainer.data import Batches, Corpus  # noqa: E402 - after the check that it can be imported
from trainer.errors import Refused  # noqa: E402
from trainer.order import Order  # noqa: E402
from trainer.prepare import END_OF_DOCUMENT, main, write_corpus  # noqa: E402

pytestmark = pytest.mark.torch


def test_the_index_is_megatrons_byte_for_byte(tmp_path):
    """Laid out by hand after Megatron-LM's MMapIndexedDataset, version 1."""
    assert write_corpus([b"ab", b"c"], tmp_path / "x") == (2, 5)
    assert (tmp_path / "x.bin").read_bytes() == struct.pack("<5H", 97, 98, 256, 99, 256)
    assert (tmp_path / "x.idx").read_bytes() == (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, 2, 3)  # version, uint16, sequences, documents + 1
        + struct.pack("<2i", 3, 2)  # tokens of each sequence
        + struct.pack("<2q", 0, 6)  # where each starts, in bytes
        + struct.pack("<3q", 0, 1, 2)  # first sequence of each document, and the end
    )


def test_a_corpus_reads_back_and_is_always_the_same(tmp_path):
    for name in ("b/2.py", "a.py", "b/1.py", "c.txt", "b/empty.py"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("" if "empty" in name else name)
    (tmp_path / "in" / "link.py").symlink_to(tmp_path / "in" / "a.py")
    for out in ("one", "two"):
        arguments = ["--input", str(tmp_path / "in"), "--suffix", ".py", "--output", str(tmp_path / "out" / out)]
        assert main(arguments) == 0
    tokens = Corpus(str(tmp_path / "out" / "one")).tokens.tolist()
    assert tokens == list(chain.from_iterable([*n.encode(), END_OF_DOCUMENT] for n in ("a.py", "b/1.py", "b/2.py")))
    for end in (".bin", ".idx"):
        assert (tmp_path / "out" / f"one{end}").read_bytes() == (tmp_path / "out" / f"two{end}").read_bytes()
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_nothing_to_prepare_is_said(tmp_path, capsys):
    for given in (tmp_path, tmp_path / "gone"):
        with pytest.raises(SystemExit) as caught:
            main(["--input", str(given), "--output", str(tmp_path / "x")])
        assert caught.value.code == 2
    assert "no text in" in capsys.readouterr().err


def cut_data(prefix):
    data = prefix.with_suffix(".bin")
    data.write_bytes(data.read_bytes()[:-2])


def cut_index(prefix):
    index = prefix.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:-1])


def other_version(prefix):
    index = prefix.with_suffix(".idx")
    index.write_bytes(index.read_bytes().replace(struct.pack("<QB", 1, 8), struct.pack("<QB", 2, 8)))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_data, "has 8 bytes, and its index tells of 5 tokens of 2 bytes"),
        (cut_index, "has 81 bytes, and should have 82"),
        (other_version, "version 2"),
        (lambda prefix: prefix.with_suffix(".idx").write_bytes(b"x" * 100), "not an index in Megatron's format"),
        (lambda prefix: prefix.with_suffix(".idx").unlink(), "cannot be read"),
    ],
)
def test_a_corpus_that_is_not_whole_is_refused_with_numbers(tmp_path, damage, words):
    write_corpus([b"ab", b"c"], tmp_path / "x")
    damage(tmp_path / "x")
    with pytest.raises(Refused, match=words):
        Corpus(str(tmp_path / "x"))


@pytest.fixture
def corpus(tmp_path):
    """100 samples of 4 tokens; the first token of each sample is its number."""
    text = b"".join(bytes([number, 200, 201, 202]) for number in range(100))
    write_corpus([text], tmp_path / "x")
    return Corpus(str(tmp_path / "x"))


def batches(corpus, **changes):
    given = {"sequence": 4, "vocabulary": 257, "micro_batch": 2, "data_rank": 0, "data_ranks": 1}
    return Batches(corpus=corpus, order=Order(samples=corpus.samples(4), seed=3), **(given | changes))


def seen(batches, consumed, accumulation):
    """Which samples the micro-batches hold."""
    return [[row[0].item() for row in tokens] for tokens, _ in batches.step(consumed, accumulation)]


def test_labels_are_the_next_tokens(corpus):
    tokens, labels = next(batches(corpus).step(0, 1))
    assert tokens.shape == labels.shape == (2, 4)
    assert (tokens[:, 1:] == labels[:, :-1]).all()


def test_a_step_sees_the_same_samples_however_many_ranks_share_it(corpus):
    alone = set(chain.from_iterable(seen(batches(corpus), 16, 8)))
    four = [seen(batches(corpus, data_rank=rank, data_ranks=4), 16, 2) for rank in range(4)]
    assert len(alone) == 16
    assert set(chain.from_iterable(chain.from_iterable(four))) == alone


def test_an_epoch_sees_each_sample_once_and_then_begins_anew(corpus):
    order = [number for step in range(25) for micro in seen(batches(corpus), 4 * step, 2) for number in micro]
    assert sorted(order) == list(range(100))
    assert seen(batches(corpus), 100, 2) != seen(batches(corpus), 0, 2)


def test_a_token_outside_of_the_vocabulary_is_refused(corpus):
    with pytest.raises(Refused, match="holds token 202, and the model's vocabulary has 200"):
        next(batches(corpus, vocabulary=200).step(0, 1))
