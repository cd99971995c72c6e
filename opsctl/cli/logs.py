"""`opsctl logs`: the log of a train, from its run directory or from a web server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn

import click

from opsctl.base.errors import OpsctlError, RunDirError
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.output import app_and_json, optional_train, print_on_stderr, wants_json
from opsctl.telemetry.logs.log_lines import for_terminal, read_line
from opsctl.telemetry.logs.train_logs import RankLogs, TrainLog, open_logs, read_around

if TYPE_CHECKING:
    from opsctl.app import App
    from opsctl.base.ports import Clock
    from opsctl.telemetry.logs.remote_log import RemoteLog


@click.command()
@optional_train
@click.option("-f", "--follow", is_flag=True, help="Follow the log across attempts until Ctrl-C.")
@dependent_option(
    "-n",
    "--lines",
    not_with=("--all",),
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Number of last lines to show.",
)
@click.option("--all", "whole", is_flag=True, help="Show all lines.")
@click.option("--task", type=click.IntRange(min=0), help="Array task to show (its most recent attempt).")
@click.option("--rank", type=click.IntRange(min=0), help="Rank to show (most recent attempt, or --task).")
@click.option("--node", help="Node to show (most recent attempt, or --task).")
@click.option("--at", type=click.IntRange(min=0), help="Show the main log around a place that opsctl why names.")
@click.option("--from", "url", metavar="URL", help="Read a log from a web server instead of TRAIN.")
@app_and_json
def logs(
    app: App,
    train: str | None,
    *,
    follow: bool,
    lines: int,
    whole: bool,
    task: int | None,
    rank: int | None,
    node: str | None,
    at: int | None,
    url: str | None,
) -> None:
    """Show and follow the log of a train.

    Shows the last lines of the main log of TRAIN and of pulse.log, or the logs of single ranks. With --json, each line
    is an object with node, rank and text.

    \b
    opsctl logs tiny-gpt -f
    opsctl logs tiny-gpt --task 3 --rank 0 --all
    opsctl logs --from https://example.org/main_log.txt -f
    """
    picks_ranks = (task, rank, node) != (None, None, None)
    if bool(train) == bool(url):
        raise click.UsageError("Name a TRAIN, or an address with --from, not both.")
    if url and picks_ranks:
        raise click.UsageError("--task, --rank and --node choose among TRAIN's files; there are none with --from.")
    if at is not None and train:
        _print(read_around(app.find(train).main_log, at))
        return
    if url:
        from opsctl.telemetry.logs.remote_log import connect  # noqa: PLC0415 (for addresses alone)

        source: TrainLog | RankLogs | RemoteLog = connect(url, app.clock)
    else:
        run, with_prefix = app.find(train or ""), rank is None or wants_json()
        source = open_logs(run, app.journal(run), task=task, rank=rank, node=node, with_prefix=with_prefix)
    has_printed = _print(source.tail(None if whole else lines))
    if follow:
        _follow(source, app.clock)
    if not (_print(source.rest()) or has_printed or lines == 0):
        raise OpsctlError(
            f"{source.description}: nothing yet", hint="-f waits for it; opsctl status says what runs and waits"
        )


def _follow(source: TrainLog | RankLogs | RemoteLog, clock: Clock) -> NoReturn:
    """Follow until Ctrl-C. A server that stops answering is reported once and tried again."""
    is_failing = False
    while True:
        clock.sleep(source.poll_seconds)
        try:
            _print(source.read())
            is_failing = False
        except RunDirError:
            raise
        except OpsctlError as error:
            if not is_failing:
                print_on_stderr(f"opsctl: {error.message}; trying again")
            is_failing = True


def _print(lines: Iterable[bytes]) -> bool:
    """Write lines: as JSON, harmless to a terminal, unchanged to a pipe. Return whether there were any."""
    out, has_printed = sys.stdout.buffer, False
    form: Callable[[bytes], bytes] = bytes
    if wants_json():
        form = _to_json
    elif out.isatty():
        form = _to_terminal
    for line in lines:
        has_printed = True
        out.write(form(line) + b"\n")
    out.flush()
    return has_printed


def _to_terminal(line: bytes) -> bytes:
    return for_terminal(line).encode(errors="replace")


def _to_json(line: bytes) -> bytes:
    log_line = read_line(line)
    record = {"node": log_line.node, "rank": log_line.rank, "text": log_line.text.decode(errors="replace")}
    return json.dumps(record, ensure_ascii=False).encode()
