"""Read the alert ledger of a site, wherever its newest state lies. Light: `opsctl status` reads open alerts with it."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from opsctl.alerts.ledger_state import LedgerState, parse
from opsctl.base.errors import RunDirError, cannot_read
from opsctl.state.files import MAX_STATE_BYTES, read_bounded
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
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(".broken"))
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
