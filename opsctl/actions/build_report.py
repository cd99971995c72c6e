"""The report on a train, from its journal and from Slurm's accounting."""

from dataclasses import replace
from pathlib import Path

from opsctl.app import App
from opsctl.base.errors import InputError, OpsctlError
from opsctl.monitor.damaged_files import list_damages
from opsctl.report.contents import WHOLE, Report, ReportPeriod
from opsctl.report.train_report import read_train
from opsctl.slurm.past_jobs import JobRun, convert_jobs, read_past_jobs
from opsctl.state.journal import replay
from opsctl.state.run_dir import RunDir


def build_train_report(app: App, run: RunDir, past_jobs: Path | None, period: ReportPeriod = WHOLE) -> Report:
    """Build the report of a train. Raises InputError."""
    now = app.clock.now()
    events = (journal := app.journal(run)).all_events()
    arrays = list(replay(events).arrays)
    jobs = select_jobs(read_past_jobs(past_jobs), arrays, run.name) if past_jobs else find_past_jobs(app, arrays)
    report = read_train(run, events, now, period=period, jobs=jobs).report
    speeds, problems = app.history.list_speeds(app.site.health.flaky_days, run.name), app.history.list_unreadable()
    return replace(report, node_speeds=speeds, notes=(*report.notes, *problems, *list_damages(journal)))


def select_jobs(jobs: list[JobRun], arrays: list[str], train: str) -> list[JobRun]:
    """Return the jobs of the train among all jobs of a user. Raises InputError if there are none."""
    job_runs = [job for job in jobs if job.job.partition("_")[0] in arrays]
    if not job_runs:
        raise InputError(
            f"--sacct: none of the {len(jobs)} jobs belongs to {train}, whose arrays are {', '.join(arrays)}"
        )
    return job_runs


def find_past_jobs(app: App, arrays: list[str]) -> list[JobRun]:
    """Return the jobs that accounting records; empty without accounting, because the journal suffices."""
    try:
        return convert_jobs(app.slurm.past(arrays)) if arrays else []
    except OpsctlError:
        return []
