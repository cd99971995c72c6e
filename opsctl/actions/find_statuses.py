"""The status of trains, from one query of Slurm."""

from collections.abc import Callable, Sequence

from opsctl.actions.owner_actions import apply_armed_switches, keep_cron_alive
from opsctl.alerts.ledger_files import OpenAlert, open_alerts
from opsctl.app import App
from opsctl.base.errors import OpsctlError, Unreachable
from opsctl.base.model import Job
from opsctl.monitor.status import TrainStatus, read_status, unreadable
from opsctl.state.run_dir import RunDir

SLURM = "slurm/site"
"""Key of the alert that Slurm does not answer."""


def find_statuses(
    app: App, runs: Sequence[RunDir], *, is_named: bool, show: Callable[[str], None], acts: bool = True
) -> list[TrainStatus]:
    """Return the status of every train in `runs`, after the tasks of the owner: cron, and armed switches.

    Without `acts`, nothing is done: the status is only read. A train that cannot be read has the reason as its status;
    if `is_named`, its error is raised.
    """
    alerts = open_alerts(app.alert_ledger, app.clock.now())
    jobs, away = _queue(app, alerts) if runs else ([], "")
    if jobs is not None and acts:
        keep_cron_alive(app, show=show)
        if apply_armed_switches(app, runs, jobs, show=show):
            app.shared_queue.forget()
            jobs, away = _queue(app, alerts)
    return [read_train_status(app, run, jobs, alerts, away, is_named=is_named) for run in runs]


def read_train_status(
    app: App,
    run: RunDir,
    jobs: Sequence[Job] | None,
    alerts: Sequence[OpenAlert],
    away: str,
    *,
    is_named: bool = False,
) -> TrainStatus:
    """Return the status of one train; of a train that cannot be read, the reason, unless the train was named."""
    try:
        return read_status(run, app.journal(run), jobs, app.clock.now(), alerts, away=away)
    except Exception as error:  # one train of another user must not hide all others
        if is_named:
            raise
        why = error.message if isinstance(error, OpsctlError) else f"{type(error).__name__}: {error}"
        return unreadable(run, why, away=away)


def _queue(app: App, alerts: Sequence[OpenAlert]) -> tuple[list[Job] | None, str]:
    """Return the queue, or the reason why Slurm does not answer, with the start of the outage if an alert has it."""
    try:
        return app.jobs(), ""
    except Unreachable as error:
        since = next(
            (f", since {alert.since[:16].replace('T', ' ')} UTC" for alert in alerts if alert.key == SLURM), ""
        )
        return None, f"Slurm does not answer{since}: {error.message}"
