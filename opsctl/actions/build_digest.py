"""The digest of a site, from the journals, the reports, the alert ledger and Slurm."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from opsctl.actions.build_report import build_train_report
from opsctl.alerts.ledger_state import LedgerEntry
from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.base.findings import Severity
from opsctl.base.model import Job
from opsctl.base.units import format_time
from opsctl.monitor.damaged_files import list_damages
from opsctl.monitor.status import TrainStatus, read_status
from opsctl.report.contents import Report, ReportPeriod
from opsctl.report.digest import Digest, TrainDigest, list_actions
from opsctl.state.run_dir import RunDir, all_trains
from opsctl.telemetry.progress.effective_time import Bucket
from opsctl.watchdogs.node_health import worst_severity


def build_digest(app: App, since: datetime) -> Digest:
    """Return the digest of all trains since a time. The digest names what cannot be read.

    Raises RunDirError if the root cannot be listed.
    """
    problems: list[str] = []
    jobs: Sequence[Job] | None = None
    try:
        jobs = app.slurm.jobs()
        bad = [node for node in app.slurm.nodes() if worst_severity(node.state) is not Severity.OK]
        nodes = [f"{node.name}: {node.state}{f': {node.reason}' if node.reason else ''}" for node in bad]
    except OpsctlError as error:
        problems.append(f"Slurm: {error.message}")
        nodes = []
    problems += app.history.list_unreadable()
    entries = _read_entries(app, problems)
    opened = sorted(
        (entry for entry in entries.values() if entry.is_open),
        key=lambda entry: (-entry.severity.rank, entry.key),
    )
    excluded = [
        f"{exclusion.node}: excluded until {format_time(datetime.fromtimestamp(exclusion.until, UTC))}:"
        f" {exclusion.reason}"
        for exclusion in app.exclusions.shown()
    ]
    return Digest(
        site=app.site.alerts.site_name,
        since=since,
        made=app.clock.now(),
        trains=tuple(_digest_train(app, run, jobs, since) for run in all_trains(app.root)),
        alerts=tuple(_describe(entry) for entry in opened if not entry.acknowledged),
        acknowledged=tuple(
            f"{_describe(entry)}; acknowledged by {entry.acknowledged.by}: {entry.acknowledged.reason}"
            for entry in opened
            if entry.acknowledged
        ),
        disks=tuple(
            entry.finding.summary
            for key, entry in sorted(entries.items())
            if key.startswith("fs_quota/") and entry.finding
        ),
        nodes=(*nodes, *excluded),
        problems=tuple(problems),
    )


def _read_entries(app: App, problems: list[str]) -> Mapping[str, LedgerEntry]:
    try:
        return app.alerting.ledger.entries()
    except OpsctlError as error:
        problems.append(f"alerts: {error.message}")
        return {}


def _describe(entry: LedgerEntry) -> str:
    summary = entry.finding.summary if entry.finding else entry.key
    remedy = f"; {entry.finding.remedy}" if entry.finding and entry.finding.remedy and not entry.acknowledged else ""
    return f"{entry.severity.value} since {format_time(entry.since)}: {summary} ({entry.key}){remedy}"


def _digest_train(app: App, run: RunDir, jobs: Sequence[Job] | None, since: datetime) -> TrainDigest:
    try:
        status = read_status(run, app.journal(run), jobs, app.clock.now())
        actions = list_actions(tuple(app.journal(run).all_events()), since)
    except (OpsctlError, OSError) as error:
        return TrainDigest(train=run.name, state="unknown", problem=str(error))
    problem = "; ".join(list_damages(app.journal(run)))
    digest = replace(_from_status(app, status, actions), problem=problem)
    try:
        report = build_train_report(app, run, None, ReportPeriod(since=since))
    except (OpsctlError, OSError) as error:
        is_over = status.state in {"ended", "finished", "not submitted"}
        return digest if is_over else replace(digest, problem=str(error))
    return _add_report(digest, report)


def _from_status(app: App, status: TrainStatus, actions: tuple[str, ...]) -> TrainDigest:
    progress, now = status.progress, app.clock.now()
    left = progress.left if progress else None
    return TrainDigest(
        train=status.train,
        state=status.state,
        step=progress.step if progress and progress.is_step_known else None,
        last_step=progress.last_step if progress else None,
        loss=progress.loss if progress else None,
        end=now + timedelta(seconds=left.likely) if left and left.likely else None,
        end_range=(now + timedelta(seconds=left.early), now + timedelta(seconds=left.late)) if left else None,
        actions=actions,
    )


def _add_report(digest: TrainDigest, report: Report) -> TrainDigest:
    effective_s = report.buckets[Bucket.EFFECTIVE]
    steps = round(effective_s / report.step_s) if report.step_s and report.is_progress_known else None
    return replace(
        digest,
        steps_done=steps,
        wall_s=report.wall_s,
        effective_share=report.first_time,
        losses=tuple(report.losses),
    )
