"""`opsctl top`: all trains on a full-screen terminal, each with its card, log, diagnosis and stacks."""

from __future__ import annotations

import os
import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from opsctl.base.errors import InputError
from opsctl.cli.options import Duration

if TYPE_CHECKING:
    from opsctl.app import App

MIN_EVERY = timedelta(seconds=2)
WITHOUT_COLOUR = re.compile(r"vt\d+|.*-(m|mono)$")
"""Terminals that show bold and reverse, but no colours."""
WITHOUT_CURSOR = ("", "dumb", "unknown", "emacs")
"""Values of TERM for terminals that only print lines."""


@click.command()
@click.option(
    "--every", type=Duration(minimum=MIN_EVERY), default="10s", show_default=True, help="Time between two refreshes."
)
@click.pass_obj
def top(app: App, *, every: timedelta) -> None:
    """Watch and steer all trains on a full-screen terminal.

    Shows a table of trains below the open alerts. Enter opens a train with its card, log, diagnosis and stacks. F1
    lists the keys: j and k move, / searches, F5 refreshes; h holds, r releases, a acknowledges, each after a question.
    A refresh asks Slurm once for all trains. NO_COLOR is honoured.

    \b
    opsctl top
    opsctl top --every 30s
    NO_COLOR=1 opsctl top
    """
    from opsctl.base.extras import required  # noqa: PLC0415 (only for this command)

    term = os.environ.get("TERM", "")
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise InputError("top: needs a terminal", hint="opsctl status --watch prints page after page")
    if term in WITHOUT_CURSOR:
        raise InputError(
            f"top: the terminal cannot move its cursor ({f'TERM={term}' if term else 'TERM is not set'})",
            hint="opsctl status --watch works on every terminal; or set TERM, such as TERM=vt100",
        )
    if WITHOUT_COLOUR.fullmatch(term):
        os.environ["NO_COLOR"] = "1"
    with required("top"):
        from opsctl.cli.top.top_app import TopApp  # noqa: PLC0415 (slow import, an extra)
    TopApp(app, every_s=every.total_seconds()).run()
