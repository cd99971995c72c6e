"""The words of answers, people and signatures."""

from datetime import timedelta

import pytest

from opsctl.alerts.answer import AnswerVerb, Instruction, find_person, parse_answer, sign, verify


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("ack", Instruction(verb=AnswerVerb.ACK)),
        ("> quoted\n\nAcknowledge: on it", Instruction(verb=AnswerVerb.ACK, reason="on it")),
        ("silence 90m power cut", Instruction(verb=AnswerVerb.SILENCE, span=timedelta(minutes=90), reason="power cut")),
        ("silence until morning", Instruction(verb=AnswerVerb.SILENCE, reason="until morning")),
        ("silence 99d", Instruction(verb=AnswerVerb.SILENCE, span=timedelta(days=7))),
        ("RELEASE", Instruction(verb=AnswerVerb.RELEASE)),
        ("please ack", None),
        ("cancel gpt", None),
        ("", None),
    ],
)
def test_first_word_decides(text, asked):
    assert parse_answer(text) == asked


def test_person_is_found_by_any_sender_in_any_case():
    people = {"anna": ("U0ANNA", "anna@example.org")}
    assert find_person(people, "Anna@Example.org") == "anna"
    assert find_person(people, "eve@example.org") == ""
    assert find_person({"anna": ()}, "") == ""


def test_signature_binds_an_id_to_the_key():
    signed = f"abc.1.{sign('key', 'abc.1')}"
    assert verify("key", signed) == "abc.1"
    assert verify("other", signed) == ""
    assert verify("key", signed.replace("abc.1", "abc.2")) == ""
