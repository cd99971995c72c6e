"""`opsctl report`: effective time, and every lost hour by cause."""

import sys
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from opsctl.actions.build_report import build_train_report
from opsctl.app import App
from opsctl.base.units import format_duration, format_percent
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import Since
from opsctl.cli.output import (
    app_and_json,
    make_table,
    optional_train,
    print_result,
    write_file,
)
from opsctl.report import formats
from opsctl.report.contents import Report, ReportPeriod
from opsctl.report.log_report import report_log
from opsctl.slurm.past_jobs import read_past_jobs
from opsctl.telemetry.progress.effective_time import Bucket

BAR = 40
"""Characters of the longest bar."""


@click.command()
@optional_train
@click.option("--log", type=click.Path(path_type=Path), help="Report on a log, or a tracker's files, instead of TRAIN.")
@click.option("--sacct", type=click.Path(path_type=Path), help="File with sacct output that says when the jobs ran.")
@click.option("--since", type=Since(), help="Start of the report: 2026-03-01, '2026-03-01 12:00', 3d.")
@click.option("--until", type=Since(), help="End of the report, in the same forms.")
@click.option("--html", type=click.Path(path_type=Path), help="Write one self-contained HTML page.")
@dependent_option("--markdown", not_with=("--json",), is_flag=True, help="Print Markdown.")
@app_and_json
def report(
    app: App,
    train: str | None,
    *,
    log: Path | None,
    sacct: Path | None,
    since: datetime | None,
    until: datetime | None,
    html: Path | None,
    markdown: bool,
) -> None:
    """Account for every lost hour of a train by cause.

    Shows the effective time of TRAIN: the share of the wall-clock spent on first-time training (ETTR). The causes of
    the rest always add up to the wall-clock.

    --log takes the log of any known trainer, TensorBoard files or their directory, offline runs of W&B, and exported
    tables (CSV, JSON). Each file, and each step that goes back, is one attempt.

    \b
    opsctl report tiny-gpt
    opsctl report tiny-gpt --since 7d --markdown
    opsctl report tiny-gpt --since 2026-03-01 --until 2026-04-01
    opsctl report tiny-gpt --html report.html
    opsctl report --log main_log.txt --sacct sacct.txt
    opsctl report --log tensorboard/ --html report.html
    opsctl report --log wandb/offline-run-20260301_120000-ab12cd34/run-ab12cd34.wandb
    """
    if bool(train) == bool(log):
        raise click.UsageError(
            "Name a TRAIN, or a log with --log, not both." if train else "Name a TRAIN, or a log with --log."
        )
    period = ReportPeriod(since=since, until=until)
    is_terminal = sys.stderr.isatty()  # a spinner shows that a long log is read
    with Console(stderr=True).status("reading the log …") if is_terminal else nullcontext():
        if log:
            report_ = report_log(log, read_past_jobs(sacct) if sacct else None, app.clock.now(), period=period)
        else:
            report_ = build_train_report(app, app.find(train or ""), sacct, period)
    if html:
        from opsctl.report.html_page import render_page  # noqa: PLC0415 (jinja2, only for --html)

        write_file(html, render_page(report_))
    shown = f"{html}: {formats.render_headline(report_)}" if html else page(report_)
    print_result(formats.to_json(report_), formats.markdown(report_) if markdown else shown)


def page(report: Report) -> RenderableType:
    facts = [(Text(f"  {name}", style="dim"), value) for name, value in formats.facts(report)]
    headline = Text(f"{report.train}: {formats.render_headline(report)}", style="bold")
    parts: list[RenderableType] = [headline, make_table(facts), Text(""), _shares(report)]
    if len(report.causes) > 1:
        first, *others = formats.CAUSE_COLUMNS
        causes = [(f"  {cause}", *cells) for cause, *cells in formats.cause_rows(report)]
        parts += [Text(""), make_table(causes, [f"  {first}", *others])]
    if report.attempts:
        parts += [Text(""), make_table(formats.attempt_rows(report), formats.ATTEMPT_COLUMNS)]
    if report.drills:
        parts += [Text(""), make_table(map(formats.drill_row, report.drills), formats.DRILL_COLUMNS)]
    return Group(*parts, *(Text(f"note: {note}", style="yellow") for note in report.notes))


def _shares(report: Report) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name, justify in (("  where it went", "left"), ("time", "right"), ("share", "right"), ("", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]  # rich accepts these literals
    for bucket, spent, share in formats.shares(report):
        style = "green" if bucket is Bucket.EFFECTIVE else "red"
        bar = Text("█" * round(BAR * share) or "▏", style=style)
        table.add_row(Text(f"  {bucket}"), format_duration(spent), format_percent(share), bar)
    return table
