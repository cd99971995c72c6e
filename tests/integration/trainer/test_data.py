"""Corpora in Megatron's indexed format, and their samples."""

import struct
from collections import Counter
from functools import partial
from itertools import chain

import pytest
from pydantic import ValidationError

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

from opsctl.trainer.batches import Batches, open_data  # noqa: E402
from opsctl.trainer.blend import Blend, CorpusPart, Turns, split  # noqa: E402 - after the check that it can be imported
from opsctl.trainer.config import TrainerConfig  # noqa: E402
from opsctl.trainer.config_tables import DataConfig  # noqa: E402
from opsctl.trainer.errors import Refused  # noqa: E402
from opsctl.trainer.indexed_corpus import Corpus, token_type, write_corpus  # noqa: E402
from opsctl.trainer.sample_order import SampleOrder, taken  # noqa: E402
from opsctl.trainer.tokens import ByteLevel  # noqa: E402

pytestmark = pytest.mark.torch


def write(prefix, *texts, vocabulary=257):
    return write_corpus(map(ByteLevel(), texts), prefix, vocabulary=vocabulary)


def test_index_equals_that_of_megatron(tmp_path):
    """The expected bytes follow Megatron-LM's MMapIndexedDataset, version 1."""
    assert write(tmp_path / "x", b"ab", b"c") == (2, 5)
    assert (tmp_path / "x.bin").read_bytes() == struct.pack("<5H", 97, 98, 256, 99, 256)
    assert (tmp_path / "x.idx").read_bytes() == (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, 2, 3)  # version, uint16, sequences, documents + 1
        + struct.pack("<2i", 3, 2)  # tokens of each sequence
        + struct.pack("<2q", 0, 6)  # where each starts, in bytes
        + struct.pack("<3q", 0, 1, 2)  # first sequence of each document, and the end
    )


def test_failed_write_keeps_the_old_corpus(tmp_path):
    def cut_off():
        yield ByteLevel()(b"new")
        raise Refused("no more")

    write(tmp_path / "x", b"ab", b"c")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(Refused, match="no more"):
        write_corpus(cut_off(), tmp_path / "x", vocabulary=257)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_large_vocabulary_is_written_in_four_bytes(tmp_path):
    write_corpus([np.array([70000, 1])], tmp_path / "x", vocabulary=250880)
    assert (tmp_path / "x.bin").read_bytes() == struct.pack("<2i", 70000, 1)
    assert Corpus(str(tmp_path / "x")).tokens.tolist() == [70000, 1]


def test_two_byte_tokens_end_at_the_limit_of_megatron():
    """The limit is that of Megatron's best_fitting_dtype, so that Megatron can append to a corpus."""
    assert [token_type(vocabulary)[1] for vocabulary in (65499, 65500)] == [np.uint16, np.int32]


def cut_data(prefix):
    data = prefix.with_suffix(".bin")
    data.write_bytes(data.read_bytes()[:-2])


def cut_index(prefix, missing=1):
    index = prefix.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:-missing])


def write_other_version(prefix):
    index = prefix.with_suffix(".idx")
    index.write_bytes(index.read_bytes().replace(struct.pack("<QB", 1, 8), struct.pack("<QB", 2, 8)))


def write_too_many_sequences(prefix):
    """Write more sequences into the header than memory holds; the file size must be checked first."""
    index = prefix.with_suffix(".idx")
    index.write_bytes(index.read_bytes().replace(struct.pack("<QQ", 2, 3), struct.pack("<QQ", 1 << 61, 3)))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_data, "has 8 bytes, but its index records 5 tokens of 2 bytes"),
        (cut_index, "has 81 bytes, and should have 82"),
        (partial(cut_index, missing=46), "has 36 bytes, and should have 82"),  # within the lengths
        (partial(cut_index, missing=70), "has 12 bytes, and its header alone 34"),
        (write_other_version, r"is of version 2 \(known is 1\)"),
        (write_too_many_sequences, "should have 27670116110564327482 for 2305843009213693952 sequences"),
        (lambda prefix: prefix.with_suffix(".idx").write_bytes(b"x" * 100), "not an index in Megatron's format"),
        (lambda prefix: prefix.with_suffix(".idx").unlink(), "cannot be read"),
    ],
)
def test_incomplete_corpus_is_refused_with_numbers(tmp_path, damage, words):
    write(tmp_path / "x", b"ab", b"c")
    damage(tmp_path / "x")
    with pytest.raises(Refused, match=words):
        Corpus(str(tmp_path / "x"))


def test_vocabulary_larger_than_the_model_is_refused(tmp_path):
    write(tmp_path / "x", b"abc")
    with pytest.raises(Refused, match="has a vocabulary of 257, and the model's has 200"):
        Corpus(str(tmp_path / "x")).refuse_vocabulary(200)
    (tmp_path / "x.json").unlink()  # Megatron writes no vocabulary file: then the tokens decide
    with pytest.raises(Refused, match="holds token 256, and the model's vocabulary has 200"):
        Corpus(str(tmp_path / "x")).refuse_vocabulary(200)
    Corpus(str(tmp_path / "x")).refuse_vocabulary(257)


def write_numbered(path, first):
    """Write 100 samples of 4 tokens; the first token of each sample is its number plus `first`."""
    write(path, b"".join(bytes([first + number, 200, 201, 202]) for number in range(100)))
    return Corpus(str(path))


@pytest.fixture
def corpus(tmp_path):
    return write_numbered(tmp_path / "x", 0)


def make_blend(corpora, *, weights=None, stages=(), held_out=0.0):
    """Return the blend of corpora by weight; `stages` are pairs of a first sample and weights by corpus."""
    weights = weights or [1.0] * len(corpora)
    blends = [make_tables(dict(zip(corpora, weights, strict=True))), *(make_tables(stage) for _, stage in stages)]
    later = [{"from_sample": first, "blend": blend} for (first, _), blend in zip(stages, blends[1:], strict=True)]
    data = DataConfig.model_validate({"blend": blends[0], "stages": later})
    parts = [split(Corpus(prefix), sequence=4, held_out=held_out)[0] for prefix in data.corpora()]
    return Blend(parts, Turns(data), sequence=4, seed=3)


def make_tables(weights):
    return [{"prefix": corpus.prefix, "weight": weight} for corpus, weight in weights.items()]


def make_batches(corpus, **changes):
    numbers = {"vocabulary": 257, "micro_batch": 2, "data_rank": 0, "data_ranks": 1}
    return Batches(blend=make_blend([corpus]), **(numbers | changes))


def list_samples(batches, consumed, batch):
    """Return the numbers of the samples in the micro-batches of a step."""
    return [[row[0].item() for row in tokens] for tokens, _ in batches.step(consumed, batch)]


def test_labels_are_the_next_tokens(corpus):
    tokens, labels = next(make_batches(corpus).step(0, 2))
    assert tokens.shape == labels.shape == (2, 4)
    assert (tokens[:, 1:] == labels[:, :-1]).all()


def test_samples_do_not_depend_on_the_ranks(corpus):
    alone = set(chain.from_iterable(list_samples(make_batches(corpus), 16, 16)))
    four = [list_samples(make_batches(corpus, data_rank=rank, data_ranks=4), 16, 16) for rank in range(4)]
    assert len(alone) == 16
    assert [len(micro_batches) for micro_batches in four] == [2] * 4
    assert set(chain.from_iterable(chain.from_iterable(four))) == alone


def test_epoch_reads_every_sample_once(corpus):
    order: list[int] = []
    for step in range(25):
        order += chain.from_iterable(list_samples(make_batches(corpus), 4 * step, 4))
    assert sorted(order) == list(range(100))
    assert list_samples(make_batches(corpus), 100, 4) != list_samples(make_batches(corpus), 0, 4)


def test_seed_determines_the_order_of_a_corpus(corpus):
    order = SampleOrder(samples=100, seed=3)
    assert chain.from_iterable(list_samples(make_batches(corpus), 0, 50)).__next__() == order.sample(0)
    assert list(chain.from_iterable(list_samples(make_batches(corpus), 90, 20))) == [
        order.sample(n) for n in range(90, 110)
    ]


def test_token_outside_the_vocabulary_is_refused(corpus):
    with pytest.raises(Refused, match="holds token 202, and the model's vocabulary has 200"):
        next(make_batches(corpus, vocabulary=200).step(0, 2))


def test_negative_token_is_refused(tmp_path):
    write_corpus([np.array([3, -7, 5, 1, 2])], tmp_path / "x", vocabulary=100000)
    with pytest.raises(Refused, match="holds token -7"):
        next(make_batches(Corpus(str(tmp_path / "x"))).step(0, 2))


def test_only_skipped_samples_are_left_out(corpus):
    everything, skipped = make_batches(corpus), make_batches(corpus, skipped=[range(6, 10), range(30, 31)])
    consumed, got = 0, []
    for _ in range(5):
        got += chain.from_iterable(list_samples(skipped, consumed, 8))
        consumed = skipped.after(consumed, 8)
    assert consumed == 45
    before = list(chain.from_iterable(list_samples(everything, 0, 46)))[:45]
    assert got == before[:6] + before[10:30] + before[31:]


def test_skipped_range_in_the_past_changes_nothing():
    assert taken(50, 4, [range(10, 20)]) == [50, 51, 52, 53]
    assert taken(12, 4, [range(10, 20)]) == [20, 21, 22, 23]
    assert taken(9, 4, [range(10, 20), range(21, 23)]) == [9, 20, 23, 24]


def test_blend_mixes_by_weight_from_the_first_samples(tmp_path):
    blend = make_blend([write_numbered(tmp_path / "a", 0), write_numbered(tmp_path / "b", 100)], weights=[3.0, 1.0])
    for upto in (4, 40, 10_000):
        assert Counter(blend.parts.index(blend.source(n)[0]) for n in range(upto)) == {0: upto * 3 // 4, 1: upto // 4}


def test_blend_part_has_its_own_epochs(tmp_path):
    """The parts have 90 samples."""
    corpora = [write_numbered(tmp_path / "a", 0), write_numbered(tmp_path / "b", 100)]
    blend = make_blend(corpora, weights=[3.0, 1.0], held_out=0.1)
    for part, share in zip(blend.parts, (3, 1), strict=True):
        samples = [sample for source, sample in map(blend.source, range(21_000)) if source is part]
        assert len(samples) == 21_000 * share // 4
        for epoch in range(0, len(samples) - 89, 90):
            assert sorted(samples[epoch : epoch + 90]) == list(range(90))


def test_corpora_of_the_same_size_have_different_orders(tmp_path):
    blend = make_blend([write_numbered(tmp_path / name, 0) for name in "ab"])
    orders = [[sample for source, sample in map(blend.source, range(200)) if source is part] for part in blend.parts]
    assert orders[0] != orders[1]


def test_corpus_named_twice_has_the_sum_of_its_weights(tmp_path, corpus):
    other = write_numbered(tmp_path / "other", 0)
    tables = make_tables({corpus: 1.0, other: 2.0}) + make_tables({corpus: 1.0})
    data = DataConfig.model_validate({"blend": tables})
    assert data.blends() == [(0, {corpus.prefix: 2.0, other.prefix: 2.0})]


def test_corpus_goes_on_in_the_next_stage_where_it_stopped(tmp_path):
    """The first stage takes 30 samples of the web and 10 of code; the second, mostly code, repeats none of them."""
    web, code = write_numbered(tmp_path / "web", 0), write_numbered(tmp_path / "code", 100)
    blend = make_blend([web, code], weights=[3.0, 1.0], stages=[(40, {code: 9.0, web: 1.0})])
    sources = [blend.source(position) for position in range(140)]
    of_code = [sample for part, sample in sources if part is blend.parts[1]]
    assert [Counter(blend.parts.index(part) for part, _ in span) for span in (sources[:40], sources[40:])] == [
        {0: 30, 1: 10},
        {0: 10, 1: 90},
    ]
    assert sorted(of_code) == list(range(100))
    assert blend.positions(140) == {web.prefix: 40, code.prefix: 100}


@pytest.mark.parametrize("starts", [[40, 40], [40, 30]])
def test_stages_out_of_order_are_refused(corpus, starts):
    stages = [{"from_sample": start, "blend": make_tables({corpus: 1.0})} for start in starts]
    with pytest.raises(ValidationError, match="every stage must begin after the one before"):
        DataConfig.model_validate({"stages": stages})


def test_held_out_samples_are_never_trained(corpus):
    trained, held_out = split(corpus, sequence=4, held_out=0.1)
    assert (trained.samples, held_out.samples, held_out.first) == (90, 10, 90)
    for part, numbers in ((trained, range(90)), (held_out, range(90, 100))):
        blend = Blend([part], Turns(DataConfig(prefix=corpus.prefix)), sequence=4, seed=7)
        assert sorted(blend.source(n) for n in range(part.samples)) == [(part, number) for number in numbers]


def test_evaluation_reads_the_same_samples_with_any_seed(corpus):
    def read(seed):
        config = TrainerConfig.model_validate(
            {
                "steps": 1,
                "seed": seed,
                "model": {"sequence": 4, "hidden": 8, "heads": 1},
                "data": {"prefix": corpus.prefix, "held_out": 0.2},
            }
        )
        opened = open_data(config)
        both = opened.evaluation(data_rank=0, data_ranks=1), opened.training(config, data_rank=0, data_ranks=1)
        return [list(chain.from_iterable(list_samples(batches, 0, 16))) for batches in both]

    (evaluated, trained), (again, otherwise) = read(1), read(2)
    assert evaluated == again
    assert trained != otherwise


def test_too_small_corpus_is_refused_with_numbers(corpus):
    with pytest.raises(Refused, match="has 401 tokens, too few for one sample of 1000"):
        split(corpus, sequence=1000, held_out=0.0)
    with pytest.raises(Refused, match=r"has 100 samples: held_out = 0\.001 of them is none"):
        split(corpus, sequence=4, held_out=0.001)
    assert isinstance(split(corpus, sequence=4, held_out=0.0)[0], CorpusPart)
