"""The headline of a train: one sentence with a tone, from the status of the train. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from opsctl.alerts.open_alerts import OpenAlert
from opsctl.monitor.status import TrainStatus
from opsctl.state.journal import TrainHistory


class Tone(StrEnum):
    """How urgently a train needs a person. The order is the order on the page."""

    RED = "red"
    """The train is stopped, or a critical alert is open that nobody has acknowledged."""
    AMBER = "amber"
    """The train needs a person soon, or a person takes care of it."""
    UNKNOWN = "unknown"
    GREEN = "green"
    QUIET = "quiet"
    """Nothing runs, as a person wanted."""


TONES = tuple(Tone)
PLANNED = frozenset({"killed", "cancelled", "paused"})
"""Outcomes of attempts that a person has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """`tr11 HELD 12 min: GPU fell off node017 twice`, without the name of the train."""

    tone: Tone
    word: str
    since: datetime | None
    text: str

    @property
    def rank(self) -> int:
        """The place of the tone in the order of urgency, the most urgent first."""
        return TONES.index(self.tone)


def write_headline(status: TrainStatus, history: TrainHistory) -> Headline:
    """Return the headline, from the status and the journal."""
    headline = _find_headline(status, history)
    return replace(headline, text=headline.text[:1].upper() + headline.text[1:])


def _find_headline(status: TrainStatus, history: TrainHistory) -> Headline:
    by_state = _describe_state(status, history)
    alert = next((alert for alert in status.alerts if not _is_handled(alert)), None)
    if alert is None or (by_state.word == "FINISHED" and alert.level != "critical"):
        is_handled = by_state.tone is Tone.GREEN and any(alert.level == "critical" for alert in status.alerts)
        tone = Tone.AMBER if is_handled else by_state.tone
        text = _strip_name(status, status.alerts[0].summary) if is_handled else by_state.text
        return Headline(tone=tone, word=by_state.word, since=by_state.since, text=text)
    tone = min((by_state.tone, _TONE_BY_LEVEL[alert.level]), key=TONES.index)
    text = by_state.text if by_state.tone in {Tone.RED, Tone.UNKNOWN} else _strip_name(status, alert.summary)
    return Headline(tone=tone, word=by_state.word, since=by_state.since, text=text or by_state.text)


_TONE_BY_LEVEL: Mapping[str, Tone] = {"critical": Tone.RED, "warning": Tone.AMBER, "unknown": Tone.AMBER}


def _is_handled(alert: OpenAlert) -> bool:
    return alert.acknowledged or bool(alert.silenced_until)


def _strip_name(status: TrainStatus, summary: str) -> str:
    """Return the summary of an alert without the name of the train at its beginning."""
    return summary.removeprefix(status.train).lstrip(": ") or summary


def _describe_state(status: TrainStatus, history: TrainHistory) -> Headline:
    describe = _DESCRIPTIONS.get(status.state)
    if describe is None:
        return _headline(Tone.QUIET, status.state.upper(), None, "opsctl launch submits the train")
    return describe(status, history)


def _describe_unknown(status: TrainStatus, _: TrainHistory) -> Headline:
    text = status.slurm or _first(status.notes) or "the state is unknown"
    return _headline(Tone.UNKNOWN, "UNKNOWN", None, text)


def _describe_ended(status: TrainStatus, history: TrainHistory) -> Headline:
    last = status.last_attempt
    if last is None:
        return _headline(Tone.QUIET, "ENDED", None, "nothing is queued, and no attempt has run")
    tone = Tone.QUIET if last.outcome in PLANNED else Tone.RED
    return _headline(tone, "ENDED", last.at, find_cause(status, history) or f"{last.outcome}: {last.why}")


def _describe_finished(status: TrainStatus, _: TrainHistory) -> Headline:
    text = f"at step {status.progress.step:,}" if status.progress else "the last step is done"
    return _headline(Tone.GREEN, "FINISHED", status.last_attempt.at if status.last_attempt else None, text)


def _describe_queued(status: TrainStatus, _: TrainHistory) -> Headline:
    if any("never start" in note for note in status.notes):
        return _headline(Tone.AMBER, "QUEUED", None, _first(status.notes))
    return _headline(Tone.GREEN, "QUEUED", None, _describe_waiting(status))


def _describe_run(status: TrainStatus, _: TrainHistory) -> Headline:
    since = status.running[0].since if status.running else None
    return _headline(Tone.GREEN, "RUNNING", since, status.stop or _describe_running(status))


def _describe_hold(status: TrainStatus, history: TrainHistory) -> Headline:
    """Return the headline of a held train: red if opsctl held it after a failure, amber if a person did."""
    last = status.last_attempt
    is_by_opsctl = bool(last and last.action == "hold-queued" and last.outcome not in PLANNED)
    held = history.held
    why = str(held.data["why"]) if held else _describe_waiting(status)
    if is_by_opsctl and last:
        why = find_cause(status, history) or last.why
    return _headline(Tone.RED if is_by_opsctl else Tone.AMBER, "HELD", held.when if held else None, why)


def find_cause(status: TrainStatus, history: TrainHistory) -> str:
    """Return the diagnosed cause of the last end in a few words, with nodes and count: `a GPU fell off node017, twice`.

    Empty without a diagnosis.
    """
    last = history.diagnosed.get(status.last_attempt.attempt) if status.last_attempt else None
    if last is None or last.data["cause"] in {"nothing", "unknown"}:
        return ""
    same = []
    for attempt in reversed(history.finalized):
        diagnosis = history.diagnosed.get(attempt)
        if diagnosis is None or diagnosis.data["cause"] != last.data["cause"]:
            break
        same.append(str(diagnosis.data["node"]))
    nodes = list(dict.fromkeys(filter(None, same)))
    on = f" on {nodes[0]}" if len(nodes) == 1 else ""
    if len(nodes) > 1:
        on = f" on {len(nodes)} nodes, last {nodes[0]}"
    times = {0: "", 1: "", 2: ", twice"}.get(len(same), f", {len(same)} times in a row")
    return f"{last.data['says']}{on}{times}"


def _describe_running(status: TrainStatus) -> str:
    progress = status.progress
    if progress is None:
        return "no step yet"
    if progress.phase not in ("", "train"):
        return f"in {progress.phase} at step {progress.step:,}"
    return f"training at step {progress.step:,}"


def _describe_waiting(status: TrainStatus) -> str:
    waiting = status.waiting[0] if status.waiting else None
    return waiting.why or waiting.reason if waiting else "waiting"


def _first(texts: tuple[str, ...]) -> str:
    return texts[0] if texts else ""


def _headline(tone: Tone, word: str, since: datetime | None, text: str) -> Headline:
    return Headline(tone=tone, word=word, since=since, text=text)


_DESCRIPTIONS: Mapping[str, Callable[[TrainStatus, TrainHistory], Headline]] = {
    "unknown": _describe_unknown,
    "held": _describe_hold,
    "ended": _describe_ended,
    "finished": _describe_finished,
    "queued": _describe_queued,
    "running": _describe_run,
}
"""By the state of the train."""
