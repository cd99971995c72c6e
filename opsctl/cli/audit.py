"""`opsctl audit`: who did what through which channel."""

from datetime import datetime, timedelta
from operator import attrgetter

import click

from opsctl.alerts.alert_history import list_decisions, read_alert_history
from opsctl.app import App
from opsctl.base.errors import RunDirError
from opsctl.cli.options import Since
from opsctl.cli.output import app_and_json, make_table, print_result, report_problems
from opsctl.state.files import MAX_STATE_BYTES
from opsctl.state.run_dir import all_trains


@click.command()
@click.option("--since", type=Since(), help="Start: 2026-03-01, 3d, 12h (default: a week ago).")
@app_and_json
def audit(app: App, since: datetime | None) -> int:
    """Show who did what through which channel.

    Reads the journals of all trains and of the alerts, to which opsctl only appends. Answers whose sender is not listed
    and refused requests are shown as well. Exit 1 if a journal cannot be read.

    \b
    opsctl audit
    opsctl audit --since 30d --json
    """
    alerts, problems = read_alert_history(app.site_dir.alerts, tail_bytes=MAX_STATE_BYTES)
    entries = [entry for entry in alerts if entry.channel]
    for run in all_trains(app.root):
        try:
            events = (journal := app.journal(run)).all_events()
            entries += list_decisions(events, run.name)
            problems += journal.list_damages(events)
        except RunDirError as error:
            problems.append(error.message)
    begin = since or app.clock.now() - timedelta(days=7)
    shown = sorted((entry for entry in entries if entry.at >= begin), key=attrgetter("at"))
    rows = [(f"{row.at:%Y-%m-%d %H:%M:%S}", row.by, row.channel, row.key, row.text) for row in shown]
    print_result(shown, make_table(rows, ("at (UTC)", "who", "channel", "about", "what")))
    return report_problems(problems)
