"""Conversations: what is learnt of them, how they are packed, and their loss against that of each alone."""

import json

import pytest

np = pytest.importorskip("numpy")

from opsctl.trainer.chat import LEARNT, TOKENS, ChatTemplate, ConversationEncoder, Packing  # noqa: E402
from opsctl.trainer.indexed_corpus import Corpus, write_corpus  # noqa: E402
from opsctl.trainer.prepare import main  # noqa: E402
from opsctl.trainer.tokens import END_OF_DOCUMENT, ByteLevel, Tokenizer  # noqa: E402
from tests.support.cases import read_cases  # noqa: E402
from tests.support.conversations import MESSAGES, TEMPLATES, find_learnt_text, write_pairs  # noqa: E402
from tests.support.conversations import write_tokenizer as make_tokenizer  # noqa: E402

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def encode(item, template=None, tokenizer=None):
    encoder = ConversationEncoder(tokenizer or ByteLevel(), template and ChatTemplate(template, SPECIAL))
    return encoder(json.dumps(["chats.jsonl:1", item]).encode())


def read_learnt(rows):
    """Return the learnt stretches of byte-level rows."""
    marked = "".join(chr(token) if learnt else "\0" for token, learnt in rows.T if token < END_OF_DOCUMENT)
    return [text.encode("latin-1").decode() for text in marked.split("\0") if text]


@pytest.mark.parametrize("name", TEMPLATES)
def test_assistant_messages_and_their_ends_are_learnt(name):
    rows = encode({"messages": MESSAGES}, TEMPLATES[name])
    assert read_learnt(rows) == find_learnt_text(name)


def test_text_of_a_template_is_whole():
    rows = encode({"messages": MESSAGES[:2]}, TEMPLATES["llama-3"])
    text = bytes(rows[TOKENS].astype(np.uint8)).decode()
    assert text.startswith("<s><|start_header_id|>user<|end_header_id|>\n\nWie heißt du?<|eot_id|>")


def test_template_that_writes_the_date_gives_the_same_corpus_every_day():
    template = "{{ strftime_now('%d %B %Y') }}" + TEMPLATES["chatml"]
    text = bytes(encode({"messages": MESSAGES}, template)[TOKENS].astype(np.uint8))
    assert text.startswith(b"26 July 2024<|im_start|>")


def test_completion_of_a_prompt_is_learnt_with_its_end():
    rows = encode({"prompt": "2 + 2 =", "completion": " vier é"})
    assert read_learnt(rows) == [" vier é"]
    assert rows[:, -1].tolist() == [END_OF_DOCUMENT, 1]


def test_only_completion_messages_are_learnt():
    item = {"prompt": MESSAGES[:3], "completion": MESSAGES[3:]}
    for name in ("chatml", "generation"):
        assert read_learnt(encode(item, TEMPLATES[name])) == find_learnt_text(name)[1:]


def test_answers_behind_a_prompt_that_ends_otherwise_are_learnt():
    """The template writes more behind a last message, so that the prompt alone is longer than in the conversation."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% if loop.last %}{{ '=' * 30 }}{% endif %}{% endfor %}"
    )
    item = {"prompt": MESSAGES[:3], "completion": [MESSAGES[3], MESSAGES[2], MESSAGES[1] | {"content": "x" * 40}]}
    assert read_learnt(encode(item, template)) == ["  é 🙂", "x" * 40]


def test_empty_fields_of_parquet_are_left_out():
    template = "{% for m in messages %}{{ 'tool_calls' in m }}|{{ m.content }}{% endfor %}"
    nulls = [message | {"tool_calls": None} for message in MESSAGES]
    assert (encode({"messages": nulls}, template) == encode({"messages": MESSAGES}, template)).all()


def test_first_token_is_never_learnt():
    assert encode({"prompt": "", "completion": "abc"})[LEARNT].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(*read_cases(__file__, "what_is_no_conversation_is_refused_by_its_place"))
def test_what_is_no_conversation_is_refused_by_its_place(item, template, message):
    with pytest.raises(Exception, match=r"^chats.jsonl:1: no conversation") as caught:
        encode(item, template and TEMPLATES[template])
    assert message in str(caught.value)


@pytest.mark.parametrize(*read_cases(__file__, "failure_of_a_template_is_its_own"))
def test_failure_of_a_template_is_its_own(template, message):
    with pytest.raises(Exception, match=r"^chats.jsonl:1: the chat template ") as caught:
        encode({"messages": MESSAGES}, template)
    assert message in str(caught.value)


@pytest.mark.parametrize(*read_cases(__file__, "white_space_behind_an_end_token_is_not_learnt"))
def test_white_space_behind_an_end_token_is_not_learnt(template, learnt):
    assert read_learnt(encode({"messages": MESSAGES}, template)) == learnt


def test_tokens_and_mask_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    path = make_tokenizer(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **SPECIAL)
    for name in ("generation", "llama-3", "mistral"):
        ours = encode({"messages": MESSAGES}, TEMPLATES[name], Tokenizer(path))
        expected = theirs.apply_chat_template(
            MESSAGES,
            chat_template=TEMPLATES[name],
            return_dict=True,
            return_assistant_tokens_mask=name == "generation",
        )
        assert ours[TOKENS].tolist() == expected["input_ids"]
        if name == "generation":
            assert ours[LEARNT].tolist() == expected["assistant_masks"]


def test_spaces_belong_to_what_they_end(tmp_path):
    """The tokenizer leaves spaces out of the places that it reports, as GPT-2's does."""
    tokenizer = Tokenizer(make_tokenizer(tmp_path, trim=True))
    text = "a  \n\nb"  # the two spaces are a token, whose reported place is empty
    assert (3, 3) in tokenizer._tokenizer.encode(text).offsets
    _, begins, ends = tokenizer.find(text)
    assert (begins < 3).tolist() == [True, True, False, False, False]
    assert (ends > 3).tolist() == [False, False, True, True, True]


def test_packed_conversations_are_whole_and_aligned():
    lengths = np.random.default_rng(3).integers(1, 41, size=500)
    documents = [np.stack((np.full(n, number), np.ones(n))).astype(np.int32) for number, n in enumerate(lengths)]
    packing = Packing(32, 999)
    packed = list(packing.pack(iter(documents)))
    flat = np.concatenate(packed, axis=1)
    assert flat.shape[1] % 32 == 0
    numbers = flat[TOKENS].reshape(-1, 32)
    for number, length in enumerate(lengths):
        rows, _ = np.nonzero(numbers == number)
        assert len(rows) == min(length, 32)
        assert len(set(rows)) == 1
    assert not flat[LEARNT][flat[TOKENS] == 999].any()
    assert (flat[TOKENS] == 999).mean() < 0.05
    assert f"500 conversations ({(lengths > 32).sum()} cut to 32 tokens)" in str(packing)


def test_conversation_cut_before_its_answer_is_left_out(tmp_path, capsys):
    """A sequence of such a conversation alone would be a step without a loss."""
    write_pairs(tmp_path / "chats.jsonl", [("a prompt of 20 bytes", "cd"), ("ab", "cd")])
    assert prepare("--input", tmp_path / "chats.jsonl", "--output", tmp_path / "c", "--chat", 8) == 0
    assert "1 conversations (1 left out: no learnt token in 8), 3 tokens learnt, 8 tokens" in capsys.readouterr().out
    assert Corpus(str(tmp_path / "c")).tokens[:4].tobytes() == np.array([*b"abcd"], dtype=np.uint16).tobytes()


def prepare(*arguments):
    return main([str(argument) for argument in arguments])


def test_corpus_of_no_learnt_token_is_refused(tmp_path, capsys):
    write_pairs(tmp_path / "chats.jsonl", [("a prompt of 20 bytes", "cd")] * 3)
    arguments = ("--input", tmp_path / "chats.jsonl", "--output", tmp_path / "c", "--chat", 8)
    with pytest.raises(SystemExit):
        prepare(*arguments)
    error = capsys.readouterr().err
    assert "none of 3 conversations has a learnt token in its first 8 tokens" in error
    assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]
    assert prepare(*arguments, "--shard", "0/1") == 0  # another shard may have some
    with pytest.raises(SystemExit):
        prepare("--output", tmp_path / "c", "--merge", 1)


def test_prepared_conversations_read_back(tmp_path, capsys):
    write_pairs(tmp_path / "chats.jsonl", [("ab", "cd"), ("e", "fgh"), ("prompt", "x" * 40)])
    for out, processes in (("one", 1), ("two", 2)):
        options = ("--output", tmp_path / out, "--chat", 8, "--processes", processes)
        assert prepare("--input", tmp_path / "chats.jsonl", *options) == 0
    assert "3 conversations (1 cut to 8 tokens), 9 tokens learnt, 24 tokens" in capsys.readouterr().out
    for end in (".bin", ".idx", ".json", ".learnt"):
        assert (tmp_path / f"one{end}").read_bytes() == (tmp_path / f"two{end}").read_bytes()
    corpus = Corpus(str(tmp_path / "one"))
    assert corpus.samples(8) == 3
    rows = {bytes(corpus.sample(n, 8)[:8].astype(np.uint8)): corpus.learnt_labels(n, 8).tolist() for n in range(3)}
    assert rows[b"promptxx"] == [0, 0, 0, 0, 0, 1, 1, 0]
    assert rows[b"abcd\0\0\0\0"] == [0, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("processes", [1, 2])
def test_refusal_of_a_worker_names_the_line(tmp_path, capsys, processes):
    write_pairs(tmp_path / "chats.jsonl", [("ab", "cd")] * 200)
    with (tmp_path / "chats.jsonl").open("a") as file:
        file.write('{"prompt": "x"}\n')
    options = ("--output", tmp_path / "c", "--chat", 8, "--processes", processes)
    with pytest.raises(SystemExit):
        prepare("--input", tmp_path / "chats.jsonl", *options)
    assert "chats.jsonl:201: no conversation" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]


def test_shards_of_conversations_merge(tmp_path):
    for name in "abc":
        write_pairs(tmp_path / "in" / f"{name}.jsonl", [(name, name * 9), (name, "yes")])
    options = ("--input", tmp_path / "in", "--output", tmp_path / "c", "--chat", 16)
    for number in range(2):
        assert prepare(*options, "--shard", f"{number}/2") == 0
    assert prepare("--output", tmp_path / "c", "--merge", 2) == 0
    corpus = Corpus(str(tmp_path / "c"))
    assert len(corpus.tokens) % 16 == 0
    assert corpus.facts["sequence"] == 16
    assert corpus.learnt.sum() == 3 * (10 + 4)


def test_text_prepared_over_conversations_is_learnt_whole(tmp_path):
    write_pairs(tmp_path / "chats.jsonl", [("ab", "cd")])
    assert prepare("--input", tmp_path / "chats.jsonl", "--output", tmp_path / "c", "--chat", 8) == 0
    (tmp_path / "t.txt").write_text("text")
    assert prepare("--input", tmp_path / "t.txt", "--output", tmp_path / "c") == 0
    assert Corpus(str(tmp_path / "c")).learnt is None


def test_corpus_without_its_mask_is_refused(tmp_path):
    rows = np.array([[1, 2, 3, 4], [0, 1, 1, 0]])
    write_corpus([rows], tmp_path / "c", vocabulary=9, facts={"sequence": 4}, is_packed=True)
    (tmp_path / "c.learnt").write_bytes(b"\0\1")
    with pytest.raises(Exception, match="one for each of 4 tokens"):
        Corpus(str(tmp_path / "c"))
    (tmp_path / "c.learnt").unlink()
    with pytest.raises(Exception, match="conversations, and cannot be read"):
        Corpus(str(tmp_path / "c"))


def test_other_sequence_or_mixed_documents_are_refused(tmp_path):
    write_pairs(tmp_path / "chats.jsonl", [("ab", "cd")])
    assert prepare("--input", tmp_path / "chats.jsonl", "--output", tmp_path / "c", "--chat", 8) == 0
    corpus = Corpus(str(tmp_path / "c"))
    with pytest.raises(Exception, match="prepare the corpus again with --chat 16"):
        corpus.refuse_sequence(16, separate_documents=True)
    (tmp_path / "c.json").unlink()  # a copy without the facts
    with pytest.raises(Exception, match="of unknown length"):
        Corpus(str(tmp_path / "c")).refuse_sequence(8, separate_documents=True)
    with pytest.raises(Exception, match="separate_documents = true"):
        corpus.refuse_sequence(8, separate_documents=False)
    corpus.refuse_sequence(8, separate_documents=True)
