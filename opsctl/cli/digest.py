"""`opsctl digest`: what happened since a time, for the daily mail and the hand-over."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import click

from opsctl.actions.build_digest import build_digest
from opsctl.alerts import dispatch
from opsctl.alerts.message import make_message
from opsctl.app import App
from opsctl.base.errors import InputError
from opsctl.cli.options import Since
from opsctl.cli.output import app_and_json, print_result, print_text, wants_json
from opsctl.report.digest import render, render_subject


@click.command()
@click.option("--since", type=Since(), help="Start: 2026-03-01, 3d, 12h (default: one day ago).")
@click.option("--send", "channels", multiple=True, metavar="CHANNEL", help="Send to this channel; repeatable.")
@click.option("--markdown", is_flag=True, expose_value=False, hidden=True, help="Always so.")
@app_and_json
def digest(app: App, *, since: datetime | None, channels: Sequence[str]) -> int:
    """Sum up progress, lost hours, alerts and disks.

    Shows, as Markdown, one paragraph; a table of the trains with progress, expected end and the largest losses; what
    needs a decision; then what opsctl did by itself, disks, and nodes out of service. --send sends the digest to
    channels of site.toml instead of printing the digest; exit 1 if a channel does not take the digest.

    \b
    opsctl digest
    opsctl digest --since 7d > handover.md
    opsctl digest --send mail                  daily, from the crontab
    """
    if wants_json() and channels:
        raise click.UsageError("--send and --json exclude each other.")
    if unknown := [name for name in channels if name not in app.alerting.channels]:
        known = ", ".join(app.alerting.channels)
        raise InputError(f"--send: no channel {unknown[0]!r} in [alerts.channels]; there are: {known}")
    made = build_digest(app, since or app.clock.now() - timedelta(days=1))
    if not channels:
        print_result(made, render(made))
        return 0
    message = make_message("digest", render_subject(made), render(made), made.made)
    failed = False
    for channel, error in dispatch.send_now(app.alerting, channels, message):
        print_text(f"{channel}: {f'not delivered: {error.message}' if error else 'delivered'}")
        failed = failed or error is not None
    return 1 if failed else 0
