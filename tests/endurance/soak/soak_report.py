"""The figures of a soak: cycles, faults, alerts sent and alerts lost."""

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from tests.endurance.soak.fault_plan import SLURM
from tests.endurance.soak.servers import Inbox, rows

Alerts = Counter[tuple[str, str]]
"""How often an alert occurred, by key and word (`CRITICAL`, `RESOLVED`)."""

HEAD_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d .*\n", re.MULTILINE)
"""Start of a message in a file."""


@dataclass
class Figures:
    cycles: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    expected: Alerts = field(default_factory=Counter)
    died: list[str] = field(default_factory=list)
    bugs: list[str] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    memory_mib: list[int] = field(default_factory=list)
    programs: list[Counter[str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    is_cut_off: bool = False
    """Whether the soak was out of time before the last alerts arrived: then its figures of lost alerts mean nothing."""
    story: list[str] = field(default_factory=list)
    """The beginning and the end of every fault, by cycle, to explain a failed soak."""


def count_fallback(path: Path) -> Alerts:
    """Return the alerts in the file of the fallback channel."""
    text = path.read_text() if path.exists() else ""
    alerts: Alerts = Counter()
    for body in HEAD_LINE.split(text)[1:]:
        alerts.update((key, word) for word, key in rows(body))
    return alerts


def report(
    figures: Figures, inboxes: dict[str, Inbox], *, fallback: Alerts, trains: int, undelivered: int
) -> dict[str, object]:
    """Return the figures by their names in docs/explanation/reliability.md."""
    return {
        "cycles": figures.cycles,
        "cut off": figures.is_cut_off,
        "trains": trains,
        "faults": sum(figures.faults.values()),
        "faults by kind": dict(figures.faults.most_common()),
        "troubles": dict(figures.troubles),
        "alerts expected": figures.expected.total(),
        **_report_alerts(figures.expected, inboxes, fallback),
        "cycles that died": figures.died,
        "bugs": figures.bugs,
        "problems": dict(figures.problems.most_common(12)),
        **_report_cost(figures),
        "left in outboxes": undelivered,
    }


def render_table(fields: dict[str, Any], minutes: float) -> list[str]:
    """Return the rows of the table in docs/explanation/reliability.md, for one seed."""

    def per_channel(name: str) -> str:
        counts = [fields[name][channel] for channel in ("mail", "slack")]
        return " / ".join(str(count if isinstance(count, int) else sum(count.values())) for count in counts)

    died, bugs = (len(fields[name]) for name in ("cycles that died", "bugs"))
    memory, programs = fields["memory after each quarter, MiB"], fields["Slurm's programs per cycle"]
    median_s, worst_s = fields["seconds of a cycle, median and worst"]
    rows = {
        "cycles": fields["cycles"],
        "faults": fields["faults"],
        "alerts expected": fields["alerts expected"],
        "sent by mail / by Slack": per_channel("sent"),
        "sent by the fallback, after a channel had refused for good or for hours": fields["sent by the fallback"],
        "**lost** (on no channel)": sum(fields["lost"].values()),
        "lost on one channel and its fallback": per_channel("lost on a channel"),
        "**made up** (nothing was wrong)": per_channel("false"),
        "doubled, mail / Slack: the answer was cut off, or the sender killed before it could note it": per_channel(
            "doubled"
        ),
        "doubled though the answer had arrived": per_channel("doubled though answered"),
        "cycles that died, bugs met, messages left in an outbox": f"{died}, {bugs}, {fields['left in outboxes']}",
        "resident memory of the watcher, start to end, MiB": f"{memory[0]} to {memory[-1]}",
        "Slurm's programs a cycle": ", ".join(f"{name} {count}" for name, count in programs.items()),
        "most of each in one cycle": ", ".join(map(str, fields["most in one cycle"].values())),
        "seconds of a cycle, median / worst": f"{median_s} / {worst_s}",
        "minutes": f"{minutes:.0f}",
    }
    return [f"| {name} | {figure} |" for name, figure in rows.items()]


def _report_alerts(expected: Alerts, inboxes: dict[str, Inbox], fallback: Alerts) -> dict[str, object]:
    received = {name: Counter((key, word) for word, key in inbox.alerts) for name, inbox in inboxes.items()}
    news = {name: _without_reminders(alerts) for name, alerts in received.items()}
    missing = {name: expected - alerts - fallback for name, alerts in news.items()}
    return {
        "sent": {name: alerts.total() for name, alerts in news.items()},
        "reminders": {name: received[name].total() - news[name].total() for name in received},
        "sent by the fallback": fallback.total(),
        # A message that both channels refused stands once in the file of the fallback.
        "lost": dict(missing["mail"] & missing["slack"]),
        "lost on a channel": {name: dict(alerts) for name, alerts in missing.items()},
        "false": {name: dict(alerts - expected) for name, alerts in news.items()},
        "doubled": {name: inbox.doubled for name, inbox in inboxes.items()},
        "doubled though answered": {name: dict(inbox.doubled_unasked) for name, inbox in inboxes.items()},
    }


def _without_reminders(alerts: Alerts) -> Alerts:
    return Counter({(key, word): count for (key, word), count in alerts.items() if not word.startswith("STILL")})


def _report_cost(figures: Figures) -> dict[str, object]:
    calls: Counter[str] = Counter()
    for programs in figures.programs:
        calls += programs
    last = len(figures.memory_mib) - 1
    return {
        "memory after each quarter, MiB": [figures.memory_mib[last * quarter // 4] for quarter in range(5)],
        "Slurm's programs per cycle": {name: round(n / len(figures.programs), 2) for name, n in calls.items()},
        "most in one cycle": {name: max(programs[name] for programs in figures.programs) for name in calls},
        "seconds of a cycle, median and worst": (round(median(figures.seconds), 2), round(max(figures.seconds), 1)),
    }


def list_causes(figures: Figures, fields: dict[str, Any]) -> list[str]:
    """Return the lines of the story about lost and false alerts, and about faults of Slurm; empty if all is well.

    Return the whole story of an alert that was doubled although its answer had arrived.
    """
    if any(fields["doubled though answered"].values()):
        return figures.story
    wrong = {*fields["lost"], *chain.from_iterable(fields["false"].values())}
    words = {key for key, _ in wrong} | SLURM
    return [line for line in figures.story if wrong and any(word in line for word in words)]
