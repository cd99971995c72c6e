"""The words of reasons, and what a newer version's reason looks like."""

import json

import pytest

from opsctl.state.reasons import CHANGES, NeededChange, Reason, ReasonKind
from opsctl.state.records import decode
from tests.support.cases import read_cases


@pytest.mark.parametrize(*read_cases(__file__, "reason_in_words", reason=json.loads))
def test_reason_in_words(reason, text):
    assert str(decode(Reason, reason)) == text


@pytest.mark.parametrize("kind", list(ReasonKind))
def test_every_reason_has_words_without_its_facts(kind):
    assert isinstance(str(Reason(kind=kind)), str)


def test_every_change_has_words():
    assert set(CHANGES) == set(NeededChange)
