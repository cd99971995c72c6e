"""The status of trains, from one query of Slurm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opsctl.alerts.open_alerts import OpenAlert, open_alerts
from opsctl.app import App
from opsctl.errors import Unreachable
from opsctl.model import Job
from opsctl.monitor.status import TrainStatus, read_status
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir

SLURM = "slurm/site"
"""Key of the alert that Slurm does not answer."""


def find_statuses(app: App, runs: Sequence[RunDir], *, keep_cron: Callable[[], None]) -> list[TrainStatus]:
    """Return the status of every train in `runs`. Calls `keep_cron` if Slurm answers."""
    alerts = open_alerts(SiteDir.of(app.root).alerts / "ledger.json")
    jobs, away = _queue(app, alerts) if runs else ([], "")
    if not away:
        keep_cron()
    return [read_status(run, app.journal(run), jobs, app.clock.now(), alerts, away=away) for run in runs]


def _queue(app: App, alerts: Sequence[OpenAlert]) -> tuple[list[Job] | None, str]:
    """Return the queue, or the reason why Slurm does not answer, with the start of the outage if an alert has it."""
    try:
        return app.scheduler.jobs(), ""
    except Unreachable as error:
        since = next(
            (f", since {alert.since[:16].replace('T', ' ')} UTC" for alert in alerts if alert.key == SLURM), ""
        )
        return None, f"Slurm does not answer{since}: {error.message}"
