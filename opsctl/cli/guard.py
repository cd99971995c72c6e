"""`opsctl guard run`: what a batch job becomes. Batch scripts call it; people have no need to."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import click

from opsctl import rundir
from opsctl.app import App
from opsctl.cli.owner import keep_cron
from opsctl.config import Guard, parse, read_toml
from opsctl.errors import ConfigError
from opsctl.guard.record import life_name
from opsctl.guard.run import Supervisor
from opsctl.rundir import RunDir
from opsctl.system import replace_process


@click.group()
def guard() -> None:
    """What a batch job becomes: it runs the body, honours the switches, and settles.

    \b
    opsctl guard run RUN_DIR         in a batch script that `opsctl launch` made
    """


@guard.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.pass_obj
def run(app: App, run_dir: Path) -> int:
    """Run the body of the train in RUN_DIR as this batch job. Exits as the body does."""
    train, env = RunDir(run_dir.absolute()), dict(os.environ)
    life_name(env)
    supervisor = None
    try:
        supervisor = Supervisor(
            chain=app.chain(train), rules=rules_of(train), runner=app.runner, env=env, say=say,
            check_trusted=lambda: check_body(app, train), keep_cron=lambda: keep_cron(app),
        )  # fmt: skip
        return supervisor.supervise()
    except Exception:
        if supervisor and supervisor.has_begun:
            raise
        say(f"cannot start:\n{traceback.format_exc()}")
        replace_process(["bash", str(train.wrapper)], env={"OPSCTL_GUARD_FAILED": "yes"})
        raise


def rules_of(train: RunDir) -> Guard:
    """The [guard] table, and nothing else of TRAIN.toml; the defaults if it cannot be read."""
    try:
        return parse(Guard, read_toml(train.config).get("guard", {}), str(train.config))
    except ConfigError as error:
        say(error.message)
        return Guard()


def check_body(app: App, train: RunDir) -> None:
    rundir.check_trusted((train.body,), root=app.root if app.site.trust_parents else None)


def say(text: str) -> None:
    """Into the batch log."""
    click.echo(f"opsctl guard: {text}", err=True)
