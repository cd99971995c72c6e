"""Tasks that every command of the owner of a train does first; actions and problems are printed on stderr."""

from __future__ import annotations

import click

from opsctl.actions.owner_actions import keep_cron_alive, reconcile_own_train
from opsctl.app import App
from opsctl.state.run_dir import RunDir


def reconcile_as_owner(app: App, run: RunDir, *, dry_run: bool = False) -> None:
    """Reconcile `run` if it is ours. Raises Unreachable; prints other problems, so that the command goes on."""
    if not dry_run:
        reconcile_own_train(app, run, show=print_on_stderr)


def keep_cron(app: App) -> None:
    """Submit the next tick if ticks of cron are overdue. Problems are printed only."""
    keep_cron_alive(app, show=print_on_stderr)


def print_on_stderr(text: str) -> None:
    click.echo(text, err=True)
