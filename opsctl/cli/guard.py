"""`opsctl guard run`: what a batch job becomes. Batch scripts call it; people have no need to."""

from __future__ import annotations

import os
import traceback
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
from opsctl.host.isolation import Failed, Isolation
from opsctl.host.system import replace_process
from opsctl.model import Level
from opsctl.settings.loader import GuardSettings, parse, read_toml
from opsctl.state import run_dir as rundir
from opsctl.state.run_dir import RunDir

TELL_SECONDS = 20.0
"""What telling people may take. What is not told by then is told by the next cycle of `opsctl watch`."""


@click.group()
def guard() -> None:
    """What a batch job becomes: it runs the body, honours the switches, and finalizes.

    \b
    opsctl guard run RUN_DIR         in a batch script that `opsctl launch` made
    """


@guard.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.pass_obj
def run(app: App, run_dir: Path) -> int:
    """Run the body of the train in RUN_DIR as this batch job. Exits as the body does.

    \b
    opsctl guard run RUN_DIR
    """
    train, env = RunDir(run_dir.absolute()), dict(os.environ)
    attempt_name(env)
    supervisor = None
    try:
        supervisor = Supervisor(
            chain=app.chain(train), rules=rules_of(train), runner=app.runner, env=env, report=say,
            check_trusted=lambda: check_body(app, train), revive_cron=lambda: keep_cron(app),
            care=care_of(app, env), notify=lambda: tell(app, train),
        )  # fmt: skip
        return supervisor.supervise()
    except Exception:
        if supervisor and supervisor.has_begun:
            raise
        say(f"cannot start:\n{traceback.format_exc()}")
        replace_process(["bash", str(train.wrapper)], env={"OPSCTL_GUARD_FAILED": "yes"})
        raise


def care_of(app: App, env: Mapping[str, str]) -> NodeCare:
    """With the nodes of this job reached through it."""
    own = dict.fromkeys(expand_nodes(env), env["SLURM_JOB_ID"])
    return replace(app.node_care, jobs=own)


def tell(app: App, train: RunDir) -> None:
    """Tell people of failures at once, where the site's alerts are ours; if not, whoever keeps them does. Raises
    OpsctlError."""
    from opsctl.alerts import dispatch  # noqa: PLC0415 (templates and more, for an attempt that has ended)
    from opsctl.watchdogs.failures import failures  # noqa: PLC0415 (as above)

    site = app.alerting.site.path
    findings = failures(train.name, app.journal(train).events(), app.clock.now())
    if all(finding.level is Level.OK for finding in findings) or (site.exists() and site.stat().st_uid != os.geteuid()):
        return

    def record() -> None:
        app.alerting.ledger.record(findings)
        dispatch.send_alerts(app.alerting)

    failed = Isolation[str, None](app.clock, TELL_SECONDS).run({"tell": record})["tell"]
    if isinstance(failed, Failed):
        say(f"telling people: {failed.why}")


def rules_of(train: RunDir) -> GuardSettings:
    """The [guard] table, and nothing else of TRAIN.toml; the defaults if it cannot be read."""
    try:
        return parse(GuardSettings, read_toml(train.config).get("guard", {}), str(train.config))
    except ConfigError as error:
        say(error.message)
        return GuardSettings()


def check_body(app: App, train: RunDir) -> None:
    rundir.check_trusted((train.body,), root=app.root if app.site.trust_parents else None)


def say(text: str) -> None:
    """Into the batch log."""
    click.echo(f"opsctl guard: {text}", err=True)
