"""The headline of a train: one sentence with a tone, from the status of the train. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from opsctl.alerts.ledger_files import OpenAlert
from opsctl.base.findings import Severity
from opsctl.dash.alert_groups import describe_failure
from opsctl.dash.queue_end import SOON, QueueEnd
from opsctl.dash.show_times import format_clock
from opsctl.diagnosis.causes import find_row
from opsctl.launch.wait_reasons import WaitKind
from opsctl.monitor.status import TrainStatus
from opsctl.state.journal import TrainHistory
from opsctl.watchdogs.failures import CONTINUES_WITHOUT
from opsctl.watchdogs.held_cause import describe_cause, list_same_cause


class Tone(StrEnum):
    """How urgently a train needs a person. The order is the order on the page."""

    RED = "red"
    """The train is stopped or will stop without a person."""
    AMBER = "amber"
    """A decision is due."""
    UNKNOWN = "unknown"
    BLUE = "blue"
    """The train runs well, and needs something later."""
    GREEN = "green"
    """Nothing is due: the train runs, has recovered by itself, or has finished."""
    QUIET = "quiet"
    """Nothing runs, as a person wanted."""


TONES = tuple(Tone)
PLANNED = frozenset({"killed", "cancelled", "paused"})
"""Outcomes of attempts that a person has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """`tr11 HELD 12 min: GPU fell off node017 twice`, without the name of the train."""

    tone: Tone
    text: str
    word: str = ""
    """The state in capitals."""
    since: datetime | None = None
    short: str = ""
    """The same without details, for the wall and the summary."""
    is_queue_end: bool = False
    """Whether the headline is that the queued tasks run out."""
    alert: str = ""
    """The key of the alert that the headline words."""

    @property
    def rank(self) -> int:
        """The place of the tone in the order of urgency, the most urgent first."""
        return TONES.index(self.tone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the headline needs beyond the status and the journal."""

    now: datetime
    queue_end: QueueEnd | None = None
    excluded: Mapping[str, datetime] = field(default_factory=dict)
    """Excluded nodes of the running task, with the start of each exclusion."""


def write_headline(status: TrainStatus, history: TrainHistory, outlook: Outlook) -> Headline:
    """Return the headline: the most urgent of what the status, the alerts and the outlook give reason for."""
    by_state = _describe_state(status, history)
    reasons = [by_state, *_list_concerns(status, outlook)]
    urgent = min(reasons, key=lambda reason: TONES.index(reason.tone))
    if urgent.tone is Tone.GREEN and by_state.tone is Tone.GREEN:
        urgent = reasons[-1]  # a recovery says more than the state
    text = urgent.text[:1].upper() + urgent.text[1:]
    short = urgent.short[:1].upper() + urgent.short[1:] or text
    return replace(
        by_state,
        tone=urgent.tone,
        text=text,
        word=status.state.upper(),
        short=short,
        is_queue_end=urgent.is_queue_end,
        alert=urgent.alert,
    )


def _list_concerns(status: TrainStatus, outlook: Outlook) -> Iterator[Headline]:
    """Yield further reasons, the more important of the same tone first, a recovery last."""
    if outlook.queue_end and status.state in {"running", "queued"}:
        text, at = outlook.queue_end.describe(outlook.now), outlook.queue_end.at
        tone = Tone.AMBER if at and at - outlook.now < SOON else Tone.BLUE
        yield Headline(tone=tone, text=text, short="queued tasks run out", is_queue_end=True)
    for alert in status.alerts:
        yield from _describe_alert(status, alert)
    for node, since in outlook.excluded.items():
        text = f"runs on {node}, excluded for new attempts since {format_clock(outlook.now, since)}"
        yield Headline(tone=Tone.AMBER, text=text, short=f"on excluded {node}")
    yield from _describe_recovery(status, outlook.now)


def is_urgent(alert: OpenAlert) -> bool:
    """Return whether an alert waits for a person: unanswered, and not about a failure that opsctl has healed."""
    return alert.is_loud and (alert.severity is Severity.CRITICAL or not alert.key.startswith("failures/"))


def _describe_alert(status: TrainStatus, alert: OpenAlert) -> Iterator[Headline]:
    """Yield the reason that an open alert gives: none for what opsctl has healed, and for a finished train."""
    is_finished, is_about_attempt = status.state == "finished", alert.key.startswith("failures/")
    is_minor = is_about_attempt or not alert.is_loud
    if (is_finished and is_minor) or ((is_finished or is_minor) and alert.severity is not Severity.CRITICAL):
        return
    _, brief = describe_failure(alert)
    text = f"{brief} (acknowledged)" if alert.acknowledged else brief
    is_less = is_finished or is_minor or alert.key.startswith("held/")  # a held or ended train is red by its state
    yield Headline(tone=Tone.AMBER if is_less else _TONE_BY_SEVERITY[alert.severity], text=text, alert=alert.key)


def _describe_recovery(status: TrainStatus, now: datetime) -> Iterator[Headline]:
    """Yield the recovery of a running train from a failure whose alert is still open."""
    warnings = (alert for alert in status.alerts if alert.severity is Severity.WARNING)
    alerts = [alert for alert in warnings if alert.key.startswith("failures/")]
    began = status.running[0].since if status.running else None
    nodes = [alert.node for alert in alerts if alert.kind == CONTINUES_WITHOUT]
    if status.state != "running" or began is None or not nodes or status.stop:
        return
    has_stepped = status.progress is not None and status.progress.at is not None and status.progress.at > began
    verb = f"Recovered {format_clock(now, began)}: restarted" if has_stepped else "Restarting"
    names = ", ".join(dict.fromkeys(nodes))
    yield Headline(tone=Tone.GREEN, text=f"{verb} without {names}", short=f"restarted without {names}")


_TONE_BY_SEVERITY: Mapping[str, Tone] = {"critical": Tone.RED, "warning": Tone.AMBER, "unknown": Tone.AMBER}


def _describe_state(status: TrainStatus, history: TrainHistory) -> Headline:
    match status.state:
        case "held":
            return _describe_hold(status, history)
        case "ended":
            return _describe_ended(status, history)
        case "queued" | "running":
            return _describe_live(status)
        case "finished":
            text = f"finished at {status.progress.place}" if status.progress else "the last step is done"
            return Headline(tone=Tone.GREEN, text=text, since=status.last_attempt.at if status.last_attempt else None)
        case "unknown":
            text = status.slurm or next(iter(status.notes), "") or "the state is unknown"
            return Headline(tone=Tone.UNKNOWN, text=text)
    return Headline(tone=Tone.QUIET, text="not submitted yet; opsctl launch submits the train")


def _describe_ended(status: TrainStatus, history: TrainHistory) -> Headline:
    last = status.last_attempt
    if last is None:
        return Headline(tone=Tone.QUIET, text="nothing is queued, and no attempt has run")
    tone = Tone.QUIET if last.outcome in PLANNED else Tone.RED
    return Headline(tone=tone, text=describe_cause(history) or f"{last.outcome}: {last.why}", since=last.at)


def _describe_live(status: TrainStatus) -> Headline:
    if status.state == "running":
        since = status.running[0].since if status.running else None
        if full := next((job.full_disk for job in status.running or () if job.full_disk), ""):
            return Headline(tone=Tone.RED, text=f"waits for space on the disk of {full}", since=since)
        return Headline(tone=Tone.GREEN, text=status.stop or _describe_running(status), since=since)
    if any(waiting.kind is WaitKind.NEVER for waiting in status.waiting or ()):
        return Headline(tone=Tone.AMBER, text=next(iter(status.notes), ""))
    return Headline(tone=Tone.GREEN, text=_describe_waiting(status))


def _describe_hold(status: TrainStatus, history: TrainHistory) -> Headline:
    """Return the headline of a held train: red if opsctl held it after a failure, amber if a person did."""
    last = status.last_attempt
    is_by_opsctl = is_held_by_opsctl(status)
    held = history.held
    why = str(held.reason) if held else _describe_waiting(status)
    if is_by_opsctl and last:
        why = describe_cause(history) or f"{last.outcome}: {last.why}"
    tone, since = Tone.RED if is_by_opsctl else Tone.AMBER, held.when if held else None
    why = "; ".join([why, *(job.repair for job in status.running or () if job.repair)])
    return Headline(tone=tone, text=why, since=since, short=_name_cause(status, history) if is_by_opsctl else "")


def _name_cause(status: TrainStatus, history: TrainHistory) -> str:
    """Return the diagnosed cause without nodes: `GPU fell off the bus, 6 times`; empty without a diagnosis."""
    attempt = status.last_attempt.attempt if status.last_attempt else ""
    if not describe_cause(history):
        return ""
    count, diagnosis = len(list_same_cause(history, attempt)), history.diagnosed[attempt]
    cause = find_row(diagnosis.cause)
    says = cause.says if cause else diagnosis.says
    return f"{says}, {count} times" if count > 1 else says


def is_held_by_opsctl(status: TrainStatus) -> bool:
    """Return whether opsctl holds a held train because of the end of its last attempt."""
    last = status.last_attempt
    return last is not None and last.action == "hold-queued" and last.outcome not in PLANNED


def name_holder(status: TrainStatus, history: TrainHistory) -> str:
    """Return who holds a held train: `opsctl`, a user, or `hand or Slurm` if the journal has no hold."""
    if is_held_by_opsctl(status):
        return "opsctl"
    return history.held.actor.partition("@")[0] if history.held else "hand or Slurm"


def name_attempt(attempt: str, history: TrainHistory) -> str:
    """Return the number and the job of an attempt: `attempt 6 (job 3_6)`."""
    names = list(history.started)
    job = attempt.rpartition(".")[0]
    return f"attempt {names.index(attempt) + 1} (job {job})" if attempt in names else f"attempt of job {job}"


def _describe_running(status: TrainStatus) -> str:
    progress = status.progress
    if progress is None:
        return "no step yet"
    if progress.phase not in ("", "train"):
        return f"in the phase {progress.phase} at {progress.place}"
    return f"training at {progress.place}{status.running[0].in_place if status.running else ''}"


def _describe_waiting(status: TrainStatus) -> str:
    waiting = status.waiting[0] if status.waiting else None
    return waiting.why or waiting.reason if waiting else "waiting"
