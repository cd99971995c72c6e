"""A plugin of pytest that replaces the words of findings and reasons: what decides on words then decides otherwise."""

from __future__ import annotations

import pytest

from opsctl.base import statements
from opsctl.state import reasons


@pytest.fixture(autouse=True)
def _speak_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let findings and reasons say nonsense, with a number that a reader of sentences could take for a step."""
    sentences = dict.fromkeys(statements.read_sentences(), "floop at step 7 {parts}")
    monkeypatch.setattr(statements, "read_sentences", lambda: {**sentences, statements.QUOTE: "{text}"})
    monkeypatch.setattr(reasons, "_WORDS", dict.fromkeys(reasons._WORDS, "quux without progress at step 7"))
    monkeypatch.setattr(reasons, "CHANGES", dict.fromkeys(reasons.CHANGES, ("snark", "")))
