"""`opsctl cron`: what is done while nobody looks."""

from __future__ import annotations

from dataclasses import asdict

import click

from opsctl import cycle
from opsctl.app import App
from opsctl.cli.output import json_option, print_json, say


@click.group()
def cron() -> None:
    """What is done while nobody looks.

    \b
    opsctl cron tick                 settle what ended, carry out requests, once
    """


@cron.command()
@json_option
@click.pass_obj
def tick(app: App, *, as_json: bool) -> int:
    """Attend to every train of yours once: settle lives that ended without saying so, carry out requests."""
    attended = cycle.cycle(app.root, app.scheduler, app.chain)
    if as_json:
        print_json([asdict(each) for each in attended])
    else:
        for each in attended:
            for line in (*each.done, *([f"failed: {each.error}"] if each.error else [])):
                say(f"{each.train}: {line}")
    return 1 if any(each.error for each in attended) else 0
