"""End the alert of a hold as soon as a person ends the hold: pages and `opsctl status` need no watch cycle for it."""

import contextlib

from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.base.findings import Level
from opsctl.state.run_dir import RunDir


def end_hold_alert(app: App, run: RunDir) -> None:
    """Record that the hold is over, if this user owns the alerts; the next watch cycle sends it. Raises nothing."""
    from opsctl.watchdogs.failures import failures  # noqa: PLC0415 (slow import: all watchdogs)

    ledger = app.alerting.ledger
    with contextlib.suppress(OpsctlError, OSError):
        open_keys = {key for key, entry in ledger.levels().items() if entry.level is not Level.OK}
        findings = failures(run, app.journal(run).events(), app.clock.now())
        over = [finding for finding in findings if finding.level is Level.OK and finding.key in open_keys]
        if over and ledger.is_own:
            ledger.record(over)
