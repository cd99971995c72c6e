"""The open alerts of a site, as `opsctl status` and the pages show them."""

from dataclasses import dataclass
from datetime import datetime

from opsctl.alerts.ledger_files import LedgerFiles
from opsctl.alerts.ledger_state import LedgerEntry, Silence
from opsctl.base.errors import RunDirError
from opsctl.base.findings import Level

OPEN = ("critical", "warning", "unknown")
"""Severities of open alerts, the worst first."""
LEDGER_KEY = "alerts/ledger"
"""Key of the alert that the ledger cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAlert:
    """One alert that was sent and is not resolved, or that a silence kept from being sent."""

    key: str
    level: str
    summary: str
    train: str
    """Empty for an alert that belongs to no train."""
    since: str
    acknowledged: bool
    silenced_until: str = ""
    """Empty if no silence covered the alert at its last check."""
    kind: str = ""
    """What was found: the kind of the finding's statement."""
    node: str = ""
    """A folded node list."""
    names_train: bool = False
    """Whether the summary names the train."""
    brief: str = ""
    """The summary for a place that names the train already."""
    evidence: str = ""
    """The first line that supports the finding."""
    remedy: str = ""
    """The command to type, or the action to take."""

    @property
    def is_loud(self) -> bool:
        """Whether the alert is neither acknowledged nor silenced."""
        return not (self.acknowledged or self.silenced_until)


def open_alerts(ledger: LedgerFiles, now: datetime) -> list[OpenAlert]:
    """Return the open alerts, the worst first. An unreadable ledger is an open alert itself."""
    try:
        state = ledger.read()
    except RunDirError as error:
        summary = f"open alerts are unknown: {error.message}"
        return [
            OpenAlert(
                key=LEDGER_KEY, level="unknown", summary=summary, train="", since=_as_json(now), acknowledged=False
            )
        ]
    alerts = []
    for entry in state.entries.values():
        silence = state.silenced(entry.key, entry.checked_at)
        if entry.level is not Level.OK or (silence and entry.latest_level is not Level.OK):
            alerts.append(_describe(entry, silence))
    return sorted(alerts, key=lambda alert: (OPEN.index(alert.level), alert.key))


def _describe(entry: LedgerEntry, silence: Silence | None) -> OpenAlert:
    level, finding = entry.level, entry.finding
    summary, brief = (finding.summary, finding.brief) if finding else ("", "")
    if level is Level.OK:
        level = entry.latest_level
        summary = brief = f"{entry.key} is {level}"
    note = f" (silenced until {silence.until:%Y-%m-%d %H:%M} UTC by {silence.by}: {silence.reason})" if silence else ""
    return OpenAlert(
        key=entry.key,
        level=level.value,
        summary=summary + note,
        train=finding.train if finding else "",
        since=_as_json(entry.since),
        acknowledged=entry.acknowledged is not None,
        silenced_until=_as_json(silence.until) if silence else "",
        kind=finding.says.kind if finding else "",
        node=finding.node if finding else "",
        names_train=finding is not None and finding.names_train,
        brief=brief + note,
        evidence=next(iter(finding.lines), "") if finding else "",
        remedy=finding.remedy if finding else "",
    )


def _as_json(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
