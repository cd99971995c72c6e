"""Read the alert ledger of a site, wherever its newest state lies. Light: `opsctl status` reads open alerts with it."""

import contextlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from opsctl.alerts.ledger_state import LedgerEntry, LedgerState, Silence, parse
from opsctl.base.errors import RunDirError, cannot_read
from opsctl.base.findings import Severity
from opsctl.state.files import MAX_STATE_BYTES, read_bounded, set_aside
from opsctl.state.site_dir import SiteDir


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    """The ledger of a site, and the spare one in which it continues while the site's directory cannot be written."""

    site: SiteDir
    spare: SiteDir | None = None

    def read(self) -> LedgerState:
        """Return the current state. Raises RunDirError if there is no readable one."""
        spare = self._read_spare()  # first: the spare ledger is removed only after its state is in the site's ledger
        try:
            return _combine(_read(ledger_path(self.site)), spare)
        except RunDirError:
            if spare is None:
                raise
            return spare

    def read_for_change(self) -> LedgerState:
        """Return the newest state; an empty one if the site's ledger cannot be read and there is no spare one.

        A broken ledger is set aside, so every open alert is sent again.
        """
        spare, path = self._read_spare(), ledger_path(self.site)
        try:
            return _combine(_read(path), spare)
        except BrokenLedger:
            set_aside(path)
            return _combine(LedgerState(), spare)
        except RunDirError:
            if self.spare is None:
                raise
            return spare or LedgerState(is_separate=True)

    def _read_spare(self) -> LedgerState | None:
        if self.spare is None or not ledger_path(self.spare).exists():
            return None
        with contextlib.suppress(RunDirError):
            return _read(ledger_path(self.spare))
        return None


class BrokenLedger(RunDirError):
    """The file of a ledger is readable and holds no ledger."""


def ledger_path(site: SiteDir) -> Path:
    return site.alerts / "ledger.json"


def _read(path: Path) -> LedgerState:
    """Return the ledger at `path`, an empty one without the file. Raises RunDirError."""
    try:
        return parse(read_bounded(path, MAX_STATE_BYTES))
    except FileNotFoundError:
        return LedgerState()
    except ValueError as error:
        raise BrokenLedger(f"{path}: the alert ledger is broken", hint="the next watch cycle replaces it") from error
    except OSError as error:
        raise cannot_read(path, error) from error


def _combine(state: LedgerState, spare: LedgerState | None) -> LedgerState:
    """Return the newer state. No times are compared: the clocks of hosts differ."""
    if spare is None:
        return state
    if not spare.is_separate:
        return spare if spare.revision >= state.revision else state
    for key, entry in spare.entries.items():
        if key not in state.entries or entry.checked_at >= state.entries[key].checked_at:
            state.entries[key] = entry
    state.threads |= spare.threads
    state.silences += spare.silences
    state.pending += spare.pending
    state.number = max(state.number, spare.number)
    return state


LEDGER_KEY = "alerts/ledger"
"""Key of the alert that the ledger cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAlert:
    """One alert that was sent and is not resolved, or that a silence kept from being sent."""

    key: str
    severity: Severity
    summary: str
    train: str = ""
    """Empty for an alert that belongs to no train."""
    since: str
    acknowledged: bool = False
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
    rollback_step: int | None = None
    """The step of the checkpoint to roll back to; None if no rollback is due, or no checkpoint is known."""

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
        return [OpenAlert(key=LEDGER_KEY, severity=Severity.UNKNOWN, summary=summary, since=_as_json(now))]
    alerts = []
    for entry in state.entries.values():
        silence = state.silenced(entry.key, entry.checked_at)
        if entry.is_open or (silence and entry.latest_severity is not Severity.OK):
            alerts.append(_describe(entry, silence))
    return sorted(alerts, key=lambda alert: (-alert.severity.rank, alert.key))


def _describe(entry: LedgerEntry, silence: Silence | None) -> OpenAlert:
    severity, finding = entry.severity, entry.finding
    summary, brief = (finding.summary, finding.brief) if finding else ("", "")
    if severity is Severity.OK:
        severity = entry.latest_severity
        summary = brief = f"{entry.key} is {severity}"
    note = f" (silenced until {silence.until:%Y-%m-%d %H:%M} UTC by {silence.by}: {silence.reason})" if silence else ""
    return OpenAlert(
        key=entry.key,
        severity=severity,
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
        rollback_step=finding.rollback_step if finding else None,
    )


def _as_json(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")
