"""`opsctl guard run`: supervise the body inside the job. Called by batch scripts only."""

from pathlib import Path

import click

from opsctl.actions.guard_actions import run_guard
from opsctl.app import App
from opsctl.host import log_config


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
    return run_guard(app, run_dir)
