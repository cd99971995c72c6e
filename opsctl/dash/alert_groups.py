"""Open alerts by cause: one node that was lost by three trains is one row. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.alerts.ledger_files import OpenAlert
from opsctl.base.findings import Severity
from opsctl.base.statements import read_sentences, say, say_below, state
from opsctl.watchdogs.failures import CONTINUES_WITHOUT, HELD


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertGroup:
    """Alerts with one cause, the worst first."""

    title: str
    brief: str
    """The title below the name of the only train."""
    alerts: tuple[OpenAlert, ...]

    @property
    def severity(self) -> Severity:
        return self.alerts[0].severity

    @property
    def since(self) -> str:
        return min(alert.since for alert in self.alerts)

    @property
    def is_acknowledged(self) -> bool:
        return all(alert.acknowledged for alert in self.alerts)

    @property
    def trains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(alert.train for alert in self.alerts if alert.train))

    @property
    def open_keys(self) -> tuple[str, ...]:
        return tuple(alert.key for alert in self.alerts if not alert.acknowledged)


def count_alerts(groups: Sequence[AlertGroup]) -> str:
    """Return how many alerts there are, and how many causes if that is another number: `2 causes, 5 alerts`."""
    causes, alerts = len(groups), sum(len(group.alerts) for group in groups)
    text = f"{alerts} alert{'s' * (alerts != 1)}"
    return text if causes == alerts else f"{causes} cause{'s' * (causes != 1)}, {text}"


def group_alerts(alerts: Sequence[OpenAlert]) -> tuple[AlertGroup, ...]:
    """Return the alerts by cause, the worst group first."""
    groups: dict[str, list[OpenAlert]] = {}
    for alert in sorted(alerts, key=lambda alert: -alert.severity.rank):
        groups.setdefault(_find_cause(alert), []).append(alert)
    made = [_make_group(members) for members in groups.values()]
    return tuple(sorted(made, key=lambda group: -group.severity.rank))


def _find_cause(alert: OpenAlert) -> str:
    """Return what alerts of one group share: the lost node, the hold of a train, else the key."""
    is_failure = alert.key.startswith("failures/")
    if alert.kind == CONTINUES_WITHOUT:
        return f"lost {alert.node}"
    if alert.severity is Severity.CRITICAL and (is_failure or alert.key.startswith(("checkpoint/", "held/"))):
        return f"held {alert.train}"
    return alert.key


def _make_group(alerts: Sequence[OpenAlert]) -> AlertGroup:
    """Return the group with one sentence as its title: `tr11, llama-7b-sft: continues without node002`."""
    first = alerts[0]
    held = next((alert for alert in alerts if alert.key.startswith("failures/")), None)
    if first.kind == CONTINUES_WITHOUT:
        trains = ", ".join(dict.fromkeys(alert.train for alert in alerts))
        title, brief = f"{trains}: continues without {first.node}", f"Continues without {first.node}"
    elif held:
        title, brief = describe_failure(held)
    else:
        title, brief = first.summary, first.brief
    if any(alert.kind == HELD for alert in alerts):
        brief = "The train is held"
    return AlertGroup(title=title, brief=brief, alerts=tuple(alerts))


def describe_failure(alert: OpenAlert) -> tuple[str, str]:
    """Return the summary of an alert without an attempt and its end; and the same below the name of the train."""
    kind = f"{alert.kind}_in_short"
    if kind not in read_sentences():
        return alert.summary, alert.brief
    short = state(kind, train=alert.train, nodes=alert.node)
    return say(short), say_below(short, "train")
