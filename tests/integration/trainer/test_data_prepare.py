"""`python -m opsctl.trainer.prepare`: text, JSON lines, bytes and tokenizers."""

import bz2
import gzip
import json
import lzma
from itertools import chain

import pytest

np = pytest.importorskip("numpy")

from opsctl.trainer.indexed_corpus import Corpus  # noqa: E402 - after the check that it can be imported
from opsctl.trainer.prepare import main  # noqa: E402
from opsctl.trainer.tokens import END_OF_DOCUMENT, Tokenizer  # noqa: E402
from tests.support.cases import read_cases  # noqa: E402


def prepare(*arguments):
    return main([str(argument) for argument in arguments])


def read_tokens(prefix):
    return Corpus(str(prefix)).tokens.tolist()


def as_bytes(*texts):
    return list(chain.from_iterable([*text.encode(), END_OF_DOCUMENT] for text in texts))


def read_refusal(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        prepare(*arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_corpus_reads_back_and_is_reproducible(tmp_path):
    for name in ("b/2.py", "a.py", "b/1.py", "c.txt", "b/empty.py"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("" if "empty" in name else name)
    (tmp_path / "in" / "link.py").symlink_to(tmp_path / "in" / "a.py")
    for out in ("one", "two"):
        assert prepare("--input", tmp_path / "in", "--suffix", ".py", "--output", tmp_path / "out" / out) == 0
    assert read_tokens(tmp_path / "out" / "one") == as_bytes("a.py", "b/1.py", "b/2.py")
    for end in (".bin", ".idx", ".json"):
        assert (tmp_path / "out" / f"one{end}").read_bytes() == (tmp_path / "out" / f"two{end}").read_bytes()
    assert len(list((tmp_path / "out").iterdir())) == 6


def test_jsonl_line_is_a_document(tmp_path):
    lines = [{"text": "ä b"}, {"text": ""}, {"text": "c\nd"}]
    (tmp_path / "x.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    assert prepare("--input", tmp_path / "x.jsonl", "--output", tmp_path / "x") == 0
    assert read_tokens(tmp_path / "x") == as_bytes("ä b", "c\nd")


TEXTS = ["ä b", "c\nd"]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c4.json.gz", gzip.compress(LINES)),
        ("x.jsonl.bz2", bz2.compress(LINES)),
        ("x.jsonl.xz", lzma.compress(LINES)),
        ("without-suffix", LINES),
        ("lines.json", LINES),
        ("array.json", json.dumps([{"text": text} for text in TEXTS], indent=1).encode()),
        ("strings.json", json.dumps(TEXTS).encode()),
        ("marked.jsonl", b"\xef\xbb\xbf" + LINES),
        ("named-wrongly.txt", gzip.compress(LINES)),
        ("part-00000", b'{"meta": "' + b"m" * 100_000 + b'", ' + LINES[1:]),
        ("part-00001", json.dumps([{"text": text} for text in TEXTS]).encode()),
        ("one-a-line.json", b"[\n" + LINES.strip().replace(b"\n", b",\n") + b"\n]\n"),
    ],
)
def test_form_is_told_by_the_content(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert prepare("--input", tmp_path / name, "--output", tmp_path / "out") == 0
    assert read_tokens(tmp_path / "out") == as_bytes(*TEXTS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"content": "a"}\n{"content": "b"}\n', "part-00000:1 (no key 'text'; it has content)"),
        (b'{"text": "a"\n' + LINES, "part-00000:1 (Expecting ',' delimiter"),
        (b"BZh9" + 9 * b"garbage", "part-00000: the compressed data is damaged or cut short"),
    ],
)
def test_broken_lines_of_a_file_without_suffix_are_no_text(tmp_path, capsys, content, words):
    (tmp_path / "part-00000").write_bytes(content)
    assert words in read_refusal(capsys, "--input", tmp_path / "part-00000", "--output", tmp_path / "out")


def test_mark_at_the_beginning_of_a_text_is_no_token(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbftext")
    assert prepare("--input", tmp_path / "x.txt", "--output", tmp_path / "out") == 0
    assert read_tokens(tmp_path / "out") == as_bytes("text")


def test_damaged_zstd_is_refused(tmp_path, capsys):
    library = pytest.importorskip("zstandard")
    whole = library.ZstdCompressor(write_checksum=True).compress(LINES * 50)
    for name, content in (("cut", whole[:-9]), ("spoilt", whole[:20] + b"\xff" + whole[21:])):
        (tmp_path / name).write_bytes(content)
        words = read_refusal(capsys, "--input", tmp_path / name, "--output", tmp_path / "out")
        assert f"{name}: the compressed data is damaged or cut short" in words


def test_every_frame_of_zstd_is_read(tmp_path):
    """`zstd` of several files, and pzstd, write one frame after the other."""
    library = pytest.importorskip("zstandard")
    frames = [library.ZstdCompressor().compress(line) for line in LINES.splitlines(keepends=True)]
    size = b"\x50\x2a\x4d\x18" + b"\4\0\0\0" + b"size"  # pzstd writes such a frame before each
    (tmp_path / "x.jsonl.zst").write_bytes(b"".join(size + frame for frame in frames))
    assert prepare("--input", tmp_path / "x.jsonl.zst", "--output", tmp_path / "out") == 0
    assert read_tokens(tmp_path / "out") == as_bytes(*TEXTS)


def test_parquet_gives_its_column(tmp_path, capsys):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is too large for the lock: see make integrations")
    from pyarrow import parquet  # noqa: PLC0415 - as above

    parquet.write_table(pyarrow.table({"content": TEXTS, "id": [1, 2]}), tmp_path / "x.parquet")
    words = read_refusal(capsys, "--input", tmp_path / "x.parquet", "--output", tmp_path / "out")
    assert "no column 'text'; it has content, id (--json-key)" in words
    assert prepare("--input", tmp_path / "x.parquet", "--output", tmp_path / "out", "--json-key", "content") == 0
    assert read_tokens(tmp_path / "out") == as_bytes(*TEXTS)


def test_text_is_one_document_whatever_it_begins_with(tmp_path):
    """Source code and prose may hold braces, and Latin-1 is text."""
    for number, content in enumerate((b'{"a": 1}\nis an example', b"{\n}", "Stra\xdfe".encode("latin-1"))):
        (tmp_path / "x.txt").write_bytes(content)
        out = tmp_path / f"out{number}"
        assert prepare("--input", tmp_path / "x.txt", "--output", out) == 0
        assert read_tokens(out) == [*content, END_OF_DOCUMENT]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is binary, no text"),
        (bytes(range(1, 256)) * 9, "is binary, no text"),
        ("text".encode("utf-16"), "is text in UTF-16: convert it to UTF-8"),
        (b"PK\x03\x04....", "is a zip archive"),
        (gzip.compress(b"a.txt\0\0\0ustar"), "is binary, no text"),
        (gzip.compress(LINES)[:-9], "the compressed data is damaged or cut short"),
        (b"%PDF-1.7 text", "is a PDF"),
    ],
)
def test_file_that_is_no_text_is_refused(tmp_path, capsys, content, words):
    (tmp_path / "x.txt").write_bytes(content)
    assert words in read_refusal(capsys, "--input", tmp_path / "x.txt", "--output", tmp_path / "out")
    assert not (tmp_path / "out.idx").exists()


def test_broken_json_is_refused(tmp_path, capsys):
    (tmp_path / "x.json").write_text('[{"text": "a"},')
    assert "is neither JSON nor JSON Lines" in read_refusal(
        capsys, "--input", tmp_path / "x.json", "--output", tmp_path / "out"
    )


def test_every_refused_file_is_named_at_once(tmp_path, capsys):
    for name in ("a.pdf", "b.pdf"):
        (tmp_path / name).write_bytes(b"%PDF-1.7")
    words = read_refusal(capsys, "--input", tmp_path / "a.pdf", tmp_path / "b.pdf", "--output", tmp_path / "out")
    assert "a.pdf is a PDF" in words
    assert "b.pdf is a PDF" in words


def test_invalid_lines_are_named_and_nothing_is_written(tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"content": "b"}\n{"text": "c"}\n[]\n' + "no\n" * 10)
    (tmp_path / "y.jsonl").write_text('{"text": "a"}\n')
    assert prepare("--input", tmp_path / "y.jsonl", "--output", tmp_path / "y") == 0
    for name in ("x", "y"):  # y exists already and must not change
        words = read_refusal(capsys, "--input", tmp_path / "x.jsonl", tmp_path / "y.jsonl", "--output", tmp_path / name)
        assert f"no text under 'text': {tmp_path}/x.jsonl:2 (no key 'text'; it has content); " in words
        assert f"{tmp_path}/x.jsonl:4 (no object: [])" in words
        assert words.endswith("; and 2 more\n")
    assert read_tokens(tmp_path / "y") == as_bytes("a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.jsonl", "y.bin", "y.idx", "y.json", "y.jsonl"]


def test_empty_input_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert "the input has no text" in read_refusal(capsys, "--input", tmp_path / "empty", "--output", tmp_path / "x")
    words = read_refusal(capsys, "--input", tmp_path / "gone", tmp_path / "lost", "--output", tmp_path / "x")
    assert words == f"prepare: No such file or directory: {tmp_path}/gone, {tmp_path}/lost\n"
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize(*read_cases(__file__, "invalid_options_are_refused"))
def test_invalid_options_are_refused(tmp_path, capsys, arguments, words):
    assert words in read_refusal(capsys, "--input", tmp_path, "--output", tmp_path / "x", *arguments)


@pytest.mark.parametrize(*read_cases(__file__, "merge_refuses_options_that_have_no_effect"))
def test_merge_refuses_options_that_have_no_effect(tmp_path, texts, capsys, ignored):
    assert prepare("--input", texts, "--output", tmp_path / "c", "--shard", "0/1") == 0
    words = read_refusal(capsys, "--output", tmp_path / "c", "--merge", 1, *ignored)
    assert f"{ignored[0]} has no effect with --merge" in words
    assert not (tmp_path / "c.idx").exists()


def test_key_of_the_text_is_refused_for_conversations(tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    arguments = ("--input", tmp_path / "x.jsonl", "--output", tmp_path / "x", "--chat", 8, "--json-key", "messages")
    assert "--json-key has no effect with --chat" in read_refusal(capsys, *arguments)


def test_suffix_is_refused_for_files_alone(tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')
    arguments = ("--input", tmp_path / "x.jsonl", "--output", tmp_path / "x", "--suffix", ".txt")
    assert "--suffix has no effect: no --input is a directory" in read_refusal(capsys, *arguments)


def test_input_that_cannot_be_looked_up_is_refused(tmp_path, capsys):
    arguments = ("--input", tmp_path / ("x" * 300), "--output", tmp_path / "x", "--suffix", ".txt")
    assert "File name too long" in read_refusal(capsys, *arguments)


def test_limit_below_the_first_document_is_named(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("12345")
    arguments = ("--input", tmp_path / "a.txt", "--output", tmp_path / "x", "--max-bytes", 4)
    assert "the first document has more than --max-bytes 4" in read_refusal(capsys, *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_merge_of_empty_shards_is_refused(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("")
    for number in range(2):
        assert prepare("--input", tmp_path / "a.txt", "--output", tmp_path / "c", "--shard", f"{number}/2") == 0
    assert "the 2 shards hold no document" in read_refusal(capsys, "--output", tmp_path / "c", "--merge", 2)
    assert not (tmp_path / "c.idx").exists()


def test_max_bytes_ends_with_a_whole_document(tmp_path):
    for name, text in (("a", "12345"), ("b", "678"), ("c", "9")):
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text(text)
    assert prepare("--input", tmp_path / "in", "--output", tmp_path / "x", "--max-bytes", 8) == 0
    assert read_tokens(tmp_path / "x") == as_bytes("12345", "678")


@pytest.fixture
def tokenizer(tmp_path):
    """A real tokenizer of whole words."""
    library = pytest.importorskip("tokenizers")
    words = library.Tokenizer(library.models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="<unk>"))
    words.pre_tokenizer = library.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_tokenizer_is_used_and_its_vocabulary_recorded(tmp_path, tokenizer):
    (tmp_path / "x.jsonl").write_text('{"text": "a b"}\n{"text": "b what a"}\n')
    assert prepare("--input", tmp_path / "x.jsonl", "--output", tmp_path / "x", "--tokenizer", tokenizer) == 0
    assert read_tokens(tmp_path / "x") == [2, 3, 1, 3, 0, 2, 1]
    assert json.loads((tmp_path / "x.json").read_text())["vocabulary"] == 4


def test_documents_begin_with_a_token_if_asked(tmp_path, tokenizer, capsys):
    (tmp_path / "x.jsonl").write_text('{"text": "a b"}\n{"text": "b"}\n')
    arguments = ("--input", tmp_path / "x.jsonl", "--output", tmp_path / "x", "--tokenizer", tokenizer)
    for number, begin in enumerate(("<unk>", "a")):
        assert prepare(*arguments, "--begin-token", begin, "--shard", f"{number}/2") == 0
    assert "the shards have 2" in read_refusal(capsys, "--output", tmp_path / "x", "--merge", 2)
    assert prepare(*arguments, "--begin-token", "a") == 0
    assert read_tokens(tmp_path / "x") == [2, 2, 3, 1, 2, 3, 1]
    assert json.loads((tmp_path / "x.json").read_text())["begin"] == "a"
    assert "has no token <s>, which --begin-token names" in read_refusal(capsys, *arguments, "--begin-token", "<s>")


def test_tokenizer_cuts_and_fills_no_document(tmp_path, tokenizer):
    """As a file may ask for that was saved after training on sentences."""
    library = pytest.importorskip("tokenizers")
    words = library.Tokenizer.from_file(str(tokenizer))
    words.enable_truncation(2)
    words.enable_padding(length=6)
    words.save(str(tokenizer))
    (tmp_path / "x.jsonl").write_text('{"text": "a b a b"}')
    assert prepare("--input", tmp_path / "x.jsonl", "--output", tmp_path / "x", "--tokenizer", tokenizer) == 0
    assert read_tokens(tmp_path / "x") == [2, 3, 2, 3, 1]


def test_tokenizer_without_an_end_token_is_refused(tmp_path, tokenizer, capsys):
    (tmp_path / "x.txt").write_text("a")
    arguments = ("--input", tmp_path / "x.txt", "--output", tmp_path / "x", "--tokenizer", tokenizer)
    assert "has none of <end>: specify the end-of-document token" in read_refusal(
        capsys, *arguments, "--end-token", "<end>"
    )
    tokenizer.write_text("{}")
    assert "cannot be read" in read_refusal(capsys, *arguments)


def test_end_is_a_special_token_or_the_one_of_the_model(tmp_path):
    """Gemma's vocabulary has </s>, a word of HTML, and DeepSeek's end has a name of its own."""
    library = pytest.importorskip("tokenizers")
    known = {"</s>": 0, "a": 1, "<eos>": 2, "<fin>": 3, "<unk>": 4}
    words = library.Tokenizer(library.models.WordLevel(known, unk_token="<unk>"))
    path = tmp_path / "tokenizer.json"
    words.save(str(path))
    assert Tokenizer(path).end == 0
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<fin>"}}')
    assert Tokenizer(path).end == 3
    words.add_special_tokens(["<eos>"])
    words.save(str(path))
    assert Tokenizer(path).end == 2
    assert Tokenizer(path, end="a").end == 1


def test_several_processes_write_the_same_corpus(tmp_path, tokenizer, capsys):
    lines = ({"text": " ".join("ab"[n * k % 2] for k in range(n % 7 + 1))} for n in range(1000))
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for processes in (1, 2):
        arguments = ("--input", tmp_path / "x.jsonl", "--output", tmp_path / f"x{processes}", "--tokenizer", tokenizer)
        assert prepare(*arguments, "--processes", processes, "--progress-s", 0) == 0
    assert (tmp_path / "x1.bin").read_bytes() == (tmp_path / "x2.bin").read_bytes()
    assert (tmp_path / "x1.idx").read_bytes() == (tmp_path / "x2.idx").read_bytes()
    assert "prepare: 1000 documents, " in capsys.readouterr().err


@pytest.fixture
def texts(tmp_path):
    """Ten files of very different sizes."""
    (tmp_path / "in").mkdir()
    for number in range(10):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number} " * 4**number)
    return tmp_path / "in"


@pytest.mark.parametrize("count", [1, 3, 16])
def test_merged_shards_are_the_corpus_prepared_at_once(tmp_path, texts, count):
    assert prepare("--input", texts, "--output", tmp_path / "whole") == 0
    for number in range(count):
        assert prepare("--input", texts, "--output", tmp_path / "c", "--shard", f"{number}/{count}") == 0
    assert prepare("--output", tmp_path / "c", "--merge", count) == 0
    for end in (".bin", ".idx", ".json"):
        assert (tmp_path / f"c{end}").read_bytes() == (tmp_path / f"whole{end}").read_bytes()


def test_shard_that_is_there_is_not_prepared_again(tmp_path, texts, capsys):
    arguments = ("--input", texts, "--output", tmp_path / "c", "--shard", "1/2")
    assert prepare(*arguments) == 0
    first = (tmp_path / "c-00001-of-00002.bin").stat()
    assert prepare(*arguments) == 0
    assert "c-00001-of-00002: is there already" in capsys.readouterr().out
    (texts / "9.txt").write_text("other text")
    assert prepare(*arguments) == 0
    assert (tmp_path / "c-00001-of-00002.bin").stat().st_ino != first.st_ino


def test_missing_shards_are_all_named(tmp_path, texts, capsys):
    assert prepare("--input", texts, "--output", tmp_path / "c", "--shard", "1/3") == 0
    words = read_refusal(capsys, "--output", tmp_path / "c", "--merge", 3)
    assert "c-00000-of-00003 cannot be read" in words
    assert "c-00002-of-00003 cannot be read" in words
    assert not (tmp_path / "c.idx").exists()


def test_shards_of_two_tokenizers_are_refused(tmp_path, texts, tokenizer, capsys):
    assert prepare("--input", texts, "--output", tmp_path / "c", "--shard", "0/2") == 0
    assert prepare("--input", texts, "--output", tmp_path / "c", "--shard", "1/2", "--tokenizer", tokenizer) == 0
    assert "the shards have 2 tokenizers" in read_refusal(capsys, "--output", tmp_path / "c", "--merge", 2)
