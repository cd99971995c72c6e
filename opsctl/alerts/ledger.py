"""Findings become transitions, once, however many look at the same time.

The new levels and the transitions that are still to be told are written in one file and in one step, so that whoever
dies in between leaves something to be told by the next one. A ledger that cannot be written, because the disk is full,
say, is carried on in the spare directory: that the disk is full needs to be told most of all.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path

from opsctl.alerts.ledger_state import (
    SEVERITY,
    Acknowledgement,
    AlertTransition,
    Batch,
    LedgerEntry,
    LedgerState,
    Silence,
    dump,
    parse,
)
from opsctl.alerts.transitions import next_entry
from opsctl.errors import InputError, OpsctlError, RunDirError, cannot_read
from opsctl.host.system import hostname
from opsctl.model import Finding, Level, Transition
from opsctl.ports import Clock
from opsctl.settings.alerts import AlertSettings
from opsctl.state.journal import actor, append_line
from opsctl.state.lease import lease
from opsctl.state.site_dir import SiteDir

FORGET = timedelta(days=30)
"""Nobody looked at it for so long: it is gone, as a train is that was removed."""
MOST_LINES = 100
LONGEST_LINE = 1000


@dataclass(frozen=True, slots=True)
class AlertLedger:
    """The ledger of a site. Every method raises RunDirError where it cannot be read or written, Busy where somebody
    else writes for too long."""

    site: SiteDir
    clock: Clock
    rules: AlertSettings = field(default_factory=AlertSettings)
    spare: SiteDir | None = None
    """Where it is carried on while it cannot be written."""

    def record(self, findings: Sequence[Finding]) -> list[Transition]:
        """Compare with what people were told and write it down: what they are to be told now.

        Of several that look at the same time, one gets the transition. A key that is not among `findings` keeps its
        level. What is still critical comes again after the repeat time, with `before` the same as its level.
        """
        try:
            with contextlib.ExitStack() as stack:
                theirs = self._take_back(stack)
                with self.open() as state:
                    _merge(state, theirs)
                    noted = self._judge(state, findings)
        except RunDirError:
            if self.spare is None:
                raise
            with self.open_spare() as state:
                noted = self._judge(state, findings)
        return [transition.transition for transition in noted]

    def levels(self) -> dict[str, LedgerEntry]:
        """Everything that was ever looked at, by key: what people were told of it, and what was seen since."""
        return self.read().entries

    def silence(self, pattern: str, until: datetime, why: str) -> Silence:
        """Tell nobody of keys that fit `pattern` until then; instead of an earlier one of the same pattern.

        What changes meanwhile is told afterwards, if it is still so. One that is over already ends the earlier one.
        """
        now = self.clock.now()
        given = Silence(pattern=pattern, until=until, why=_printable(why), by=actor(), at=now)
        with self.open() as state:
            state.silences = [each for each in state.in_force(now) if each.pattern != pattern]
            if now < until:
                state.silences.append(given)
        self.write_down("silence", pattern=pattern, until=until, why=why)
        return given

    def ack(self, key: str, why: str) -> LedgerEntry:
        """Somebody takes care of it: no repeats until it is worse, or over. Raises InputError if nothing is open."""
        with self.open() as state:
            entry = replace(
                _open_entry(state, key),
                acknowledged=Acknowledgement(by=actor(), at=self.clock.now(), why=_printable(why)),
            )
            state.entries[key] = entry
        self.write_down("ack", key=key, why=why)
        return entry

    def find(self, key: str) -> LedgerEntry:
        """The open alert of that key. Raises InputError if there is none."""
        return _open_entry(self.read(), key)

    @property
    def path(self) -> Path:
        return self.site.alerts / "ledger.json"

    def read(self) -> LedgerState:
        """As it is now, without writing anything."""
        if self.spare and (spare := replace(self, site=self.spare, spare=None)).path.exists():
            return _read(spare.path)
        return _read(self.path)

    @contextlib.contextmanager
    def open(self) -> Iterator[LedgerState]:
        """Change the state, all of it or nothing, with nobody else changing it."""
        self.site.create()
        with lease(self.site.alerts, self.clock):
            state = _read(self.path, set_aside=True)
            yield state
            self.site.write(self.path, dump(state))

    @contextlib.contextmanager
    def open_spare(self) -> Iterator[LedgerState]:
        """As `open`, but the spare one, which begins as a copy."""
        assert self.spare is not None
        spare = replace(self, site=self.spare, spare=None)
        with spare.open() as state:
            if not spare.path.exists():
                with contextlib.suppress(RunDirError):
                    copied = self.read()
                    state.number, state.entries, state.pending = copied.number, copied.entries, copied.pending
                    state.silences, state.threads = copied.silences, copied.threads
            yield state

    def _take_back(self, stack: contextlib.ExitStack) -> LedgerState:
        """What was written in the spare one, once all of that is in an outbox. It is gone when `stack` ends well."""
        with contextlib.suppress(OpsctlError):
            if self.spare and (spare := replace(self, site=self.spare, spare=None)).path.exists():
                stack.enter_context(lease(spare.site.alerts, self.clock))
                if not (theirs := spare.read()).pending:
                    stack.push(lambda failed, *_: None if failed else spare.path.unlink(missing_ok=True))
                    return theirs
        return LedgerState()

    def _judge(self, state: LedgerState, findings: Sequence[Finding]) -> list[AlertTransition]:
        now = self.clock.now()
        noted = []
        for key, finding in _worst([_clean(each) for each in findings]).items():
            is_silenced = state.silenced(key, now) is not None
            entry, change = next_entry(state.entries.get(key), finding, now, self.rules, is_silenced=is_silenced)
            state.entries[key] = entry
            noted += [change] if change else []
        if noted:
            state.number += 1
            state.pending.append(Batch(id=uuid.uuid4().hex[:12], number=state.number, noted=tuple(noted)))
        state.entries = {
            key: ledger_entry for key, ledger_entry in state.entries.items() if now - ledger_entry.checked_at < FORGET
        }
        state.threads = {key: thread for key, thread in state.threads.items() if now - thread.at < 2 * FORGET}
        return noted

    def write_down(self, kind: str, **data: object) -> None:
        """Into the journal of alerts, if that can be written: it is for people, and holds back nothing."""
        record = {"at": self.clock.now().isoformat(timespec="milliseconds"), "actor": f"{actor()}@{hostname()}"}
        line = json.dumps(record | {"kind": kind} | data, ensure_ascii=False, default=str) + "\n"
        with contextlib.suppress(OSError):
            append_line(self.site.alerts / f"journal-{hostname()}-{os.geteuid()}.jsonl", line.encode(errors="replace"))


def _open_entry(state: LedgerState, key: str) -> LedgerEntry:
    entry = state.entries.get(key)
    if entry is None:
        near = get_close_matches(key, state.entries, 1)
        advice = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"no alert {key!r}{advice}", hint="opsctl alerts list shows what is open")
    if entry.level is Level.OK:
        raise InputError(f"{key}: is ok, so there is nothing to acknowledge")
    return entry


def _read(path: Path, *, set_aside: bool = False) -> LedgerState:
    """What lies at `path`; nothing if that is no ledger, which makes everything that is bad be told again."""
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return LedgerState()
    except ValueError:
        if set_aside:
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(".broken"))
        return LedgerState()
    except OSError as error:
        raise cannot_read(path, error) from error


def _merge(state: LedgerState, theirs: LedgerState) -> None:
    """Take over what was looked at later."""
    known = state.entries
    state.entries = known | {
        k: e for k, e in theirs.entries.items() if k not in known or e.checked_at > known[k].checked_at
    }
    state.threads |= theirs.threads
    state.number = max(state.number, theirs.number)


def _worst(findings: Sequence[Finding]) -> dict[str, Finding]:
    """One finding for each key: the worst, where a look has several."""
    found: dict[str, Finding] = {}
    for finding in findings:
        if finding.key not in found or SEVERITY[finding.level] > SEVERITY[found[finding.key].level]:
            found[finding.key] = finding
    return found


def _clean(finding: Finding) -> Finding:
    """What can be written, read and mailed, whatever the log that it comes from held."""
    lines = finding.evidence[:MOST_LINES]
    if left := len(finding.evidence) - len(lines):
        lines = (*lines, f"and {left} lines more")
    return replace(
        finding,
        key=_printable(finding.key),
        train=_printable(finding.train),
        node=_printable(finding.node),
        summary=_printable(finding.summary),
        evidence=tuple(_printable(line) for line in lines),
        done=tuple(_printable(line) for line in finding.done),
        remedy=_printable(finding.remedy),
    )


def _printable(text: str) -> str:
    shown = "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown if len(shown) <= LONGEST_LINE else shown[: LONGEST_LINE - 1] + "…"


def summarize(transition: Transition) -> dict[str, object]:
    """For the journal of alerts."""
    finding = transition.finding
    return {"id": transition.id, "key": finding.key, "before": transition.before, "after": finding.level,
            "summary": finding.summary}  # fmt: skip
