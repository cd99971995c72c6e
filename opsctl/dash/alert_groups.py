"""Open alerts by cause: one node that was lost by three trains is one row. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.alerts.open_alerts import OPEN, OpenAlert
from opsctl.base.statements import read_sentences, say, state
from opsctl.watchdogs.failures import CONTINUES_WITHOUT, HELD


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertGroup:
    """Alerts with one cause, the worst first."""

    title: str
    alerts: tuple[OpenAlert, ...]

    @property
    def level(self) -> str:
        return self.alerts[0].level

    @property
    def since(self) -> str:
        return min(alert.since for alert in self.alerts)

    def title_for(self, train: str) -> str:
        """Return the title below the name of a train, without that name at its beginning."""
        if any(alert.kind == HELD for alert in self.alerts):
            return "The train is held"
        text = self.title.removeprefix(f"{train}: ")
        return self.title if text == self.title else text[:1].upper() + text[1:]

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
    for alert in sorted(alerts, key=lambda alert: OPEN.index(alert.level)):
        groups.setdefault(_find_cause(alert), []).append(alert)
    made = [AlertGroup(title=_write_title(members), alerts=tuple(members)) for members in groups.values()]
    return tuple(sorted(made, key=lambda group: OPEN.index(group.level)))


def _find_cause(alert: OpenAlert) -> str:
    """Return what alerts of one group share: the lost node, the hold of a train, else the key."""
    is_failure = alert.key.startswith("failures/")
    if alert.kind == CONTINUES_WITHOUT:
        return f"lost {alert.node}"
    if alert.level == "critical" and (is_failure or alert.key.startswith(("checkpoint/", "held/"))):
        return f"held {alert.train}"
    return alert.key


def _write_title(alerts: Sequence[OpenAlert]) -> str:
    """Return one sentence: `tr11, llama-7b-sft: went on without node002`."""
    first = alerts[0]
    if first.kind == CONTINUES_WITHOUT:
        trains = list(dict.fromkeys(alert.train for alert in alerts))
        return f"{', '.join(trains)}: went on without {first.node}"
    held = next((alert for alert in alerts if alert.key.startswith("failures/")), None)
    return describe_failure(held) if held else first.summary


def describe_failure(alert: OpenAlert) -> str:
    """Return the summary of an alert about an attempt without the attempt and its end."""
    kind = f"{alert.kind}_in_short"
    return say(state(kind, train=alert.train, nodes=alert.node)) if kind in read_sentences() else alert.summary
