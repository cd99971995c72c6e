"""Every kind of alert, as people read the message: tests/corpus/alerts/*.txt."""

import pytest

from opsctl.alerts.message import MAX_EVIDENCE_LINES, MAX_SUBJECT_CHARS, render_single
from opsctl.watchdogs import WATCHDOGS
from tests.support.alert_corpus import PLACE, RENDERERS, RULES, list_messages, load_changes, render_corpus


@pytest.mark.parametrize("kind", RENDERERS)
def test_messages_match_the_corpus(kind):
    assert render_corpus(kind) == (PLACE / f"{kind}.txt").read_text()


def test_corpus_has_an_alert_of_every_watchdog():
    assert {change.transition.finding.key.partition("/")[0] for change in load_changes()} >= set(WATCHDOGS)


def test_every_subject_names_its_train():
    for change in load_changes():
        assert change.transition.finding.train in render_single(change, RULES).subject


def test_every_message_fits_a_phone():
    for message in list_messages():
        assert len(message.subject) <= MAX_SUBJECT_CHARS
        evidence = message.body.partition("Evidence\n")[2].partition("\n\n")[0]
        assert len(evidence.splitlines()) <= MAX_EVIDENCE_LINES + 1
