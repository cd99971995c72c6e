"""Collect the metrics: one query to Slurm for all trains, and the files of every train."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.base.findings import Severity
from opsctl.base.model import Job
from opsctl.checkpoints.scan import find_saves
from opsctl.cron.cron_dir import CronDir
from opsctl.metrics.prometheus import MetricSample
from opsctl.monitor.read_trains import recall
from opsctl.monitor.status import STATES, TrainStatus, read_status
from opsctl.report.contents import Report, known_cause
from opsctl.report.train_report import read_train
from opsctl.state.files import is_regular, read_size_bytes
from opsctl.state.journal import Journal, replay
from opsctl.state.run_dir import RunDir, all_trains
from opsctl.telemetry.progress.run_progress import Progress, read_progress
from opsctl.watchdogs.context import WatchdogMemory

SEVERITIES = (Severity.UNKNOWN, Severity.WARNING, Severity.CRITICAL)
MAX_ALERTS = 200
"""Open alerts with a series of their own, the oldest first."""


def gather(app: App, trains: Sequence[RunDir] = ()) -> list[MetricSample]:
    """Return the metrics of `trains`, or of all trains, and of the site. Unavailable metrics are left out.

    Raises no OpsctlError: any exception is a bug in opsctl.
    """
    now = app.clock.now()
    runs, problem = (trains, "") if trains else _list_trains(app)
    jobs = _jobs(app) if runs else None
    samples = [MetricSample("opsctl_look_timestamp_seconds", now.timestamp()), *_site(app)]
    if not trains:
        samples.append(MetricSample("opsctl_root_up", float(not problem)))
    with contextlib.suppress(OSError, ValueError, OpsctlError):
        samples += _nodes(app)
    if runs:
        samples.append(MetricSample("opsctl_slurm_up", float(jobs is not None)))
    for run in runs:
        labels = {"train": run.name}
        try:
            train_samples = list(_train(run, app.journal(run), jobs, now))
        except Exception:  # noqa: BLE001 (one train of another user must not hide all others)
            samples.append(MetricSample("opsctl_train_up", 0.0, labels))
        else:
            samples += [MetricSample("opsctl_train_up", 1.0, labels), *train_samples]
    return samples


def effective(app: App, trains: Sequence[RunDir] = (), max_log_bytes: float = math.inf) -> list[MetricSample]:
    """Return where the time of `trains`, or of all trains, went, without those whose logs take minutes to read."""
    samples: list[MetricSample] = []
    for run in trains or _list_trains(app)[0]:
        with contextlib.suppress(Exception):  # as above
            if read_size_bytes(run.main_log) > max_log_bytes:
                continue
            report = read_train(run, app.journal(run).all_events(), app.clock.now()).report
            samples += _spent(run.name, report)
    return samples


def _list_trains(app: App) -> tuple[Sequence[RunDir], str]:
    """Return all trains; those that the watch listed last, and the reason, if the root cannot be listed."""
    try:
        return all_trains(app.root), ""
    except OpsctlError as error:
        return recall(WatchdogMemory(app.site_dir.path / "watch"), app.root)[0], error.message


def _spent(train: str, report: Report) -> Iterator[MetricSample]:
    for queue, share in (("with", report.ettr), ("without", report.ettr_without_queue)):
        if share is not None:
            yield MetricSample("opsctl_train_effective_ratio", share, {"train": train, "queue": queue})
    for bucket, seconds in report.buckets.items():
        yield MetricSample("opsctl_train_spent_seconds", seconds, {"train": train, "on": bucket.value})
    for cause in report.causes:
        for bucket, seconds in cause.buckets.items():
            if seconds:
                labels = {"train": train, "cause": cause.cause, "on": bucket.value}
                yield MetricSample("opsctl_train_lost_seconds", seconds, labels)


def _jobs(app: App) -> list[Job] | None:
    try:
        return app.jobs()
    except OpsctlError:
        return None


def _site(app: App) -> Iterator[MetricSample]:
    if ticked := CronDir(app.alerting.site).last_tick():
        yield MetricSample("opsctl_cron_last_tick_timestamp_seconds", ticked.timestamp())
    try:
        entries = list(app.alerting.ledger.read().entries.values())
    except OpsctlError:
        return
    severities = Counter(entry.severity for entry in entries)
    for severity in SEVERITIES:
        yield MetricSample("opsctl_alerts_open", severities[severity], {"severity": severity.value})
    is_open = [entry for entry in entries if entry.severity in SEVERITIES]
    for entry in sorted(is_open, key=lambda entry: entry.since)[:MAX_ALERTS]:
        train = entry.finding.train if entry.finding else ""
        labels = {"alert": entry.key, "severity": entry.severity.value, "train": train}
        yield MetricSample("opsctl_alert_timestamp_seconds", entry.since.timestamp(), labels)


def _nodes(app: App) -> Iterator[MetricSample]:
    """Yield what opsctl has found out about nodes. Slurm is not asked."""
    records = app.history.all()
    for health, count in sorted(Counter(record.health for record in records if record.health).items()):
        yield MetricSample("opsctl_nodes", count, {"health": health})
    for record in records:
        incidents: Counter[str] = Counter()
        for incident in record.incidents:
            incidents[incident.check] += incident.count
        for check, count in sorted(incidents.items()):
            yield MetricSample("opsctl_node_incidents_total", count, {"node": record.node, "check": check})
    for exclusion in app.exclusions.shown():
        labels = {"node": exclusion.node, "reason": exclusion.reason}
        yield MetricSample("opsctl_node_excluded_until_timestamp_seconds", exclusion.until, labels)


def _train(run: RunDir, journal: Journal, jobs: Sequence[Job] | None, now: datetime) -> Iterator[MetricSample]:
    outcomes, causes = Counter[str](), Counter[str]()
    for end in replay(journal.events()).count_ends():
        outcomes[end.outcome] += end.attempts
        causes[known_cause(end.cause) or end.outcome] += end.attempts
    for outcome, count in sorted(outcomes.items()):
        yield MetricSample("opsctl_train_attempts_total", count, {"train": run.name, "outcome": outcome})
    for cause, count in sorted(causes.items()):
        yield MetricSample("opsctl_train_ends_total", count, {"train": run.name, "cause": cause})
    yield from _files(run)
    if jobs is None:
        progress = read_progress(run)
    else:
        status = read_status(run, journal, jobs, now)
        progress = status.progress
        yield from _queue(status)
    if progress:
        yield from _progress(run.name, progress)


def _queue(status: TrainStatus) -> Iterator[MetricSample]:
    for state in STATES:
        yield MetricSample("opsctl_train_state", float(status.state == state), {"train": status.train, "state": state})
    waiting = sum(wait.tasks for wait in status.waiting or ())
    for state, tasks in (("running", len(status.running or ())), ("waiting", waiting)):
        yield MetricSample("opsctl_train_tasks", tasks, {"train": status.train, "state": state})
    reasons: Counter[str] = Counter()
    for wait in status.waiting or ():
        reasons[wait.reason] += wait.tasks
    for reason, tasks in sorted(reasons.items()):
        yield MetricSample("opsctl_train_waiting_tasks", tasks, {"train": status.train, "reason": reason})


def _files(run: RunDir) -> Iterator[MetricSample]:
    labels = {"train": run.name}
    if is_regular(run.main_log):
        yield MetricSample("opsctl_train_log_timestamp_seconds", run.main_log.lstat().st_mtime, labels)
    if saves := find_saves(run.checkpoints, embedded=is_regular(run.trainer_config)):
        yield MetricSample("opsctl_train_checkpoint_timestamp_seconds", saves[-1].at.timestamp(), labels)


def _progress(train: str, progress: Progress) -> Iterator[MetricSample]:
    figures: Iterable[tuple[str, float | None]] = (
        ("step", progress.step if progress.is_step_known else None),
        ("last_step", progress.last_step),
        ("loss", progress.loss),
        ("tokens", progress.tokens),
        ("step_seconds", progress.step_s),
        ("usual_step_seconds", progress.usual_step_s),
        ("tflops", progress.tflops),
        ("usual_tflops", progress.usual_tflops),
        ("heartbeat_timestamp_seconds", progress.at.timestamp() if progress.at else None),
        ("checkpoint_step", progress.checkpoint_step),
        ("next_checkpoint_step", progress.next_save),
    )
    for name, value in figures:
        if value is not None:
            yield MetricSample(f"opsctl_train_{name}", value, {"train": train})
    if left := progress.left:
        for bound, seconds in (("likely", left.likely), ("early", left.early), ("late", left.late)):
            yield MetricSample("opsctl_train_left_seconds", seconds, {"train": train, "bound": bound})
