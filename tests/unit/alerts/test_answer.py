"""The words of answers, people and signatures."""

import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.alerts.answer import Instruction, find_person, parse_answer, sign, verify

NOW = datetime(2026, 11, 23, 3, 10, tzinfo=UTC)
FORMS = tomllib.loads((Path(__file__).parents[2] / "corpus" / "answers" / "forms.toml").read_text())


def describe(answer: Instruction | None) -> str:
    if answer is None:
        return ""
    words = filter(None, [answer.verb.value, f"{answer.until:%H:%M}" if answer.until else "", answer.train])
    return ": ".join(filter(None, [" ".join(words), answer.reason]))


@pytest.mark.parametrize("text", FORMS["exact"])
def test_exact_form_alone_on_a_line_is_an_answer(text):
    assert describe(parse_answer(text, NOW)) == FORMS["exact"][text]
    assert describe(parse_answer(f"Hi opsctl,\n{text}\n\nThanks,\nAnna", NOW)) == FORMS["exact"][text]


@pytest.mark.parametrize("text", FORMS["none"])
def test_anything_else_is_none(text):
    assert parse_answer(text, NOW) is None


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
