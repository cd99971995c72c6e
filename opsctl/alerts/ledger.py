"""Turn findings into transitions, each exactly once, however many watch cycles run at the same time.

The new severities and the transitions without messages are written to one file in one step. A process that dies
between recording and sending leaves the transitions for the next cycle. A ledger that cannot be written, such as on a
full disk, continues in the spare directory: the full disk itself must be alerted. A change holds the leases of both
directories and continues the state with the higher revision, so that two watchers never judge by different states.
"""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from opsctl.alerts.duty import find_planned_silence
from opsctl.alerts.ledger_files import LedgerFiles, ledger_path
from opsctl.alerts.ledger_state import (
    Acknowledgement,
    AlertTransition,
    Batch,
    LedgerEntry,
    LedgerState,
    Silence,
    dump,
)
from opsctl.alerts.transitions import escalate, find_causes, name_followers, next_entry
from opsctl.base.errors import InputError, RunDirError
from opsctl.base.findings import Finding, Severity, Transition
from opsctl.base.nodesets import hostname
from opsctl.base.ports import Clock
from opsctl.base.statements import Remedy, Statement
from opsctl.settings.alerts import AlertSettings
from opsctl.state.files import append_line, set_aside
from opsctl.state.journal import actor
from opsctl.state.lease import lease
from opsctl.state.records import HEADER
from opsctl.state.site_dir import SiteDir

FORGET = timedelta(days=30)
"""An entry without a check for this long is removed: its subject is gone, such as a deleted train."""
MAX_EVIDENCE_LINES = 100
MAX_LINE_CHARS = 1000


@dataclass(frozen=True, slots=True)
class AlertLedger:
    """The ledger of a site.

    Every method raises RunDirError if the ledger cannot be read or written, and LeaseBusy if another writer takes too
    long.
    """

    site: SiteDir
    clock: Clock
    rules: AlertSettings = field(default_factory=AlertSettings)
    spare: SiteDir | None = None
    """Directory in which the ledger continues while `site` cannot be written."""
    muted: frozenset[str] = frozenset()
    """Keys that are silenced from outside, such as nodes under maintenance."""
    observed_at: datetime | None = None
    """Start of the cycle that made the findings; None: now."""
    observed_revision: int | None = None
    """Revision of the ledger at the start of this cycle; None: the current one."""

    def begin_cycle(self) -> Self:
        """Return this ledger for findings that are made from now on."""
        revision = None
        with contextlib.suppress(RunDirError):
            revision = self.read().revision
        return replace(self, observed_at=self.clock.now(), observed_revision=revision)

    def record(self, findings: Sequence[Finding]) -> list[Transition]:
        """Record `findings` and return the transitions that people must be notified of.

        Of several concurrent watch cycles, only one gets a transition. A key without a finding keeps its severity. A
        lasting alert is repeated after the repeat time; its `before` equals its severity.
        """
        with self.open() as state:
            changes = self._judge(state, findings)
        return [change.transition for change in changes]

    def entries(self) -> dict[str, LedgerEntry]:
        return self.read().entries

    def silence(
        self, pattern: str, until: datetime, reason: str, *, since: datetime | None = None, by: str = ""
    ) -> Silence:
        """Silence keys that match `pattern`; replaces an earlier silence of the same pattern.

        A severity that changes meanwhile and stays changed is sent after the silence. An `until` in the past only
        removes the earlier silence.
        """
        now = self.clock.now()
        silence = Silence(
            pattern=pattern, since=since, until=until, reason=_printable(reason), by=by or actor(), at=now
        )
        with self.open() as state:
            state.silences = [other for other in state.in_force(now) if other.pattern != pattern]
            if now < until:
                state.silences.append(silence)
        self.journal("silence", pattern=pattern, until=until, reason=reason, by=silence.by)
        return silence

    def ack(self, key: str, reason: str, *, by: str = "") -> LedgerEntry:
        """Acknowledge an alert: no repeats until it worsens or resolves. Raises InputError if the key is not open."""
        with self.open() as state:
            acknowledged = Acknowledgement(by=by or actor(), at=self.clock.now(), reason=_printable(reason))
            entry = replace(_find_open(state, key), acknowledged=acknowledged)
            state.entries[key] = entry
        self.journal("ack", key=key, reason=reason, by=acknowledged.by)
        return entry

    def find(self, key: str) -> LedgerEntry:
        """Return the open entry of `key`. Raises InputError if the key is not open."""
        return _find_open(self.read(), key)

    def read(self) -> LedgerState:
        """Return the current state without writing anything."""
        return self._files.read()

    @property
    def is_own(self) -> bool:
        """Whether this user owns the site's ledger, or could create it."""
        return _is_own(self.site.path)

    @property
    def _files(self) -> LedgerFiles:
        return LedgerFiles(self.site, self.spare)

    @contextlib.contextmanager
    def open(self) -> Iterator[LedgerState]:
        """Lock the ledger and yield its state; write the state on success, nothing on an error.

        The state is written to the spare directory if the site's cannot be written.
        """
        with contextlib.ExitStack() as stack:
            sites = self._lock(stack)
            state = self._files.read_for_change()
            yield state
            state.revision += 1
            self._write(state, sites)

    def _lock(self, stack: contextlib.ExitStack) -> list[SiteDir]:
        """Take the leases of both directories and return the directories that can be written.

        One lease is enough on a full disk: `lease` respects a lease that another process took before.
        """
        sites, errors = [], []
        for site in filter(None, (self.site, self.spare)):
            try:
                site.create()
                stack.enter_context(lease(site.alerts, self.clock))
                sites.append(site)
            except RunDirError as error:
                errors.append(error)
                if site is self.site and not _is_own(site.path):
                    raise  # only the owner's ledger continues in the spare directory
        if not sites:
            raise errors[0]
        return sites

    def _write(self, state: LedgerState, sites: Sequence[SiteDir]) -> None:
        is_separate = state.is_separate
        for site in sites:
            state.is_separate = is_separate and site is not self.site
            if is_separate and site is self.site:
                set_aside(ledger_path(site))  # could not be read
            try:
                site.write(ledger_path(site), dump(state))
            except RunDirError:
                if site is sites[-1]:
                    raise
                continue
            if site is self.site and self.spare and self.spare in sites and ledger_path(self.spare).exists():
                with contextlib.suppress(OSError):  # obsolete by its revision, if it cannot be removed
                    ledger_path(self.spare).unlink(missing_ok=True)
            return

    def _judge(self, state: LedgerState, findings: Sequence[Finding]) -> list[AlertTransition]:
        now, changes = self.clock.now(), []
        last_check = max((entry.checked_at for entry in state.entries.values()), default=now)
        worst = _select_worst([_clean(finding) for finding in findings])
        causes = find_causes(worst, state.entries, self.rules, now)
        named = name_followers(worst, causes)
        for key in sorted(named, key=lambda key: key in causes):  # causes before what follows
            change = self._judge_finding(state, named[key], causes.get(key, ""), now)
            if change:
                changes.append(change)
        if changes:
            state.number += 1
            state.pending.append(Batch(id=uuid.uuid4().hex[:12], number=state.number, changes=tuple(changes)))
        _forget(state, min(now, last_check))
        return changes

    def _judge_finding(self, state: LedgerState, finding: Finding, cause: str, now: datetime) -> AlertTransition | None:
        """Enter `finding` and return the transition to notify people of; none while the finding follows from `cause`.

        What is certain counts as reported with its cause; anything else is withheld until the cause is over.
        """
        before = state.entries.get(finding.key)
        is_reported = cause in state.entries and state.entries[cause].is_open
        is_muted = bool(state.silenced(finding.key, now) or find_planned_silence(finding, self.rules, now))
        is_muted = is_muted or finding.key in self.muted
        is_silenced = is_muted or (bool(cause) and not (finding.is_certain and is_reported))
        is_late = bool(before and self.observed_revision is not None and self.observed_revision < before.changed_in)
        entry, change = next_entry(
            before,
            finding,
            now,
            self.rules,
            is_silenced=is_silenced,
            observed_at=self.observed_at,
            is_late=is_late,
        )
        if before is None or entry.severity is not before.severity:
            entry = replace(entry, changed_in=state.revision + 1)
        was_withheld = bool(before and before.follows)
        is_withheld = bool(cause) or (was_withheld and finding.is_ok)
        follows = cause or (before.follows if before and not change else "")
        if change is None and not is_silenced and not cause:
            entry, change = escalate(entry, now, self.rules)
        state.entries[finding.key] = replace(entry, follows=follows)
        return None if is_withheld else change

    def journal(self, kind: str, **data: object) -> None:
        """Append a line to the journal of alerts. A failure is ignored: the journal is for people only."""
        at = self.clock.now().isoformat(timespec="milliseconds")
        record = {**HEADER, "at": at, "actor": f"{actor()}@{hostname()}", "kind": kind, **data}
        line = json.dumps(record, ensure_ascii=False, default=str) + "\n"
        with contextlib.suppress(OSError, RunDirError):
            if not self.site.alerts.is_dir():
                self.site.create()  # before the first watch cycle
            append_line(self.site.alerts / f"journal-{hostname()}-{os.geteuid()}.jsonl", line.encode(errors="replace"))


def _find_open(state: LedgerState, key: str) -> LedgerEntry:
    entry = state.entries.get(key)
    if entry is None:
        near = get_close_matches(key, state.entries, 1)
        advice = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"no alert {key!r}{advice}", hint="list the open alerts: opsctl alerts list")
    if not entry.is_open:
        raise InputError(f"{key}: ok, nothing to acknowledge")
    return entry


def _is_own(path: Path) -> bool:
    """Return whether this user owns `path`; yes for a missing one."""
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return True


def _forget(state: LedgerState, now: datetime) -> None:
    """Remove what had not been checked for long before the last check, so that no wrong clock removes an open alert."""
    state.entries = {key: entry for key, entry in state.entries.items() if now - entry.checked_at < FORGET}
    state.threads = {key: thread for key, thread in state.threads.items() if now - thread.at < 2 * FORGET}


def _select_worst(findings: Sequence[Finding]) -> dict[str, Finding]:
    worst: dict[str, Finding] = {}
    for finding in findings:
        if finding.key not in worst or finding.severity.rank > worst[finding.key].severity.rank:
            worst[finding.key] = finding
    return worst


def _clean(finding: Finding) -> Finding:
    """Return the finding with printable, bounded text, whatever the log contained."""
    lines = finding.evidence[:MAX_EVIDENCE_LINES]
    if left := len(finding.evidence) - len(lines):
        lines = (*lines, f"and {left} more lines")
    cleaned: Finding = _clean_value(replace(finding, evidence=lines, names=finding.names[:MAX_EVIDENCE_LINES]))
    return cleaned


def _clean_value(value: Any) -> Any:
    """Return the value with every text in it printable and bounded."""
    if isinstance(value, str) and not isinstance(value, Severity):
        return _printable(value)
    if isinstance(value, tuple):
        return tuple(map(_clean_value, value))
    if isinstance(value, dict):
        return {name: _clean_value(item) for name, item in value.items()}
    if isinstance(value, Finding | Statement | Remedy):
        return replace(value, **{place.name: _clean_value(getattr(value, place.name)) for place in fields(value)})
    return value


def _printable(text: str) -> str:
    line = "".join(map(_printable_character, text))
    return line if len(line) <= MAX_LINE_CHARS else line[: MAX_LINE_CHARS - 1] + "…"


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"


def summarize(transition: Transition) -> dict[str, object]:
    """Return the fields of a transition for the journal of alerts."""
    finding = transition.finding
    return {
        "id": transition.id,
        "key": finding.key,
        "before": transition.before,
        "after": finding.severity,
        "states": finding.says.kind,
        "summary": finding.summary,
    }
