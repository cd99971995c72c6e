"""`opsctl guard run`: supervise the body inside the job. Called by batch scripts only."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from opsctl.app import App
from opsctl.cli.owner_tasks import keep_cron
from opsctl.errors import ConfigError
from opsctl.guard.attempt_record import attempt_name, expand_nodes
from opsctl.guard.node_care import NodeCare
from opsctl.guard.supervisor import Supervisor
from opsctl.host import log_config
from opsctl.host.isolation import Failed, Isolation
from opsctl.host.system import replace_process
from opsctl.model import Level
from opsctl.settings.loader import GuardSettings, parse, read_toml
from opsctl.state import run_dir as rundir
from opsctl.state.run_dir import RunDir

log = logging.getLogger("opsctl.guard")
NOTIFY_TIMEOUT_S = 20.0
"""Time limit of sending alerts. The next watch cycle sends the rest."""


@click.group()
def guard() -> None:
    """Supervise the body of a train inside its job.

    Batch scripts call this command. It runs the body, honours the switches and finalizes attempts.

    \b
    opsctl guard run RUN_DIR         called by the wrapper that launch submits
    """


@guard.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.pass_obj
def run(app: App, run_dir: Path) -> int:
    """Run the body of the train in RUN_DIR.

    The exit code is that of the body.

    \b
    opsctl guard run RUN_DIR
    """
    log_config.show_progress()
    train, env = RunDir(run_dir.absolute()), dict(os.environ)
    attempt_name(env)
    supervisor = None
    try:
        supervisor = Supervisor(
            chain=app.chain(train),
            rules=rules_of(train),
            runner=app.runner,
            env=env,
            check_trusted=lambda: check_body(app, train),
            revive_cron=lambda: keep_cron(app),
            care=care_of(app, env),
            notify=lambda: notify(app, train),
        )
        return supervisor.supervise()
    except Exception:
        if supervisor and supervisor.has_begun:
            raise
        log.exception("the guard cannot start; the wrapper goes on without the guard")
        replace_process(["bash", str(train.wrapper)], env={"OPSCTL_GUARD_FAILED": "yes"})
        raise


def care_of(app: App, env: Mapping[str, str]) -> NodeCare:
    """Return the node care that reaches the nodes of this job through the job."""
    own = dict.fromkeys(expand_nodes(env), env["SLURM_JOB_ID"])
    return replace(app.node_care, jobs=own)


def notify(app: App, train: RunDir) -> None:
    """Send alerts of failures at once. Raises OpsctlError.

    Does nothing if the alert ledger belongs to another user, whose watch sends the alerts.
    """
    from opsctl.alerts import dispatch  # noqa: PLC0415 (only after an attempt has ended)
    from opsctl.watchdogs.failures import failures  # noqa: PLC0415 (as above)

    site = app.alerting.site.path
    findings = failures(train.name, app.journal(train).events(), app.clock.now())
    if all(finding.level is Level.OK for finding in findings) or (site.exists() and site.stat().st_uid != os.geteuid()):
        return

    def record() -> None:
        app.alerting.ledger.record(findings)
        dispatch.send_alerts(app.alerting)

    failed = Isolation[str, None](app.clock, NOTIFY_TIMEOUT_S).run({"notify": record})["notify"]
    if isinstance(failed, Failed):
        log.warning("sending alerts: %s", failed.why)


def rules_of(train: RunDir) -> GuardSettings:
    """Return the [guard] table of train.toml; the defaults if the file cannot be read."""
    try:
        return parse(GuardSettings, read_toml(train.config).get("guard", {}), str(train.config))
    except ConfigError as error:
        log.warning("%s; using the defaults of [guard]", error.message)
        return GuardSettings()


def check_body(app: App, train: RunDir) -> None:
    rundir.check_trusted((train.body,), root=app.root if app.site.trust_parents else None)
