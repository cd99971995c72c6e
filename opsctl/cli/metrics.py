"""`opsctl metrics`: metrics of all trains, for Prometheus."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from opsctl.app import App
from opsctl.base.errors import InputError
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.output import app_and_json, complete_trains, print_result, print_text, write_file
from opsctl.metrics.collect import effective, gather
from opsctl.metrics.prometheus import EFFECTIVE_EVERY_S, Fresh, exposition, listen, parse_address
from opsctl.state.run_dir import RunDir

MAX_LOG_BYTES = 8 << 20
"""Of a larger log, only a server reads the effective time, in a thread: 5 GB take minutes."""
TEXTFILE_SUFFIX = ".prom"
"""Suffix of the files that node_exporter reads."""


@click.command()
@click.argument("trains", nargs=-1, metavar="[TRAIN]...", shell_complete=complete_trains)
@dependent_option(
    "--textfile",
    not_with=("--listen", "--json"),
    type=click.Path(path_type=Path),
    help="Write to this file atomically, for node_exporter.",
)
@dependent_option(
    "--listen",
    "address",
    not_with=("--json",),
    metavar="127.0.0.1:PORT",
    help="Serve over HTTP until Ctrl-C.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Skip the effective time, for which whole logs are read.",
)
@app_and_json
def metrics(app: App, trains: Sequence[str], *, textfile: Path | None, address: str | None, quick: bool) -> None:
    """Export metrics of all trains to Prometheus.

    Prints step, loss, speed, effective time, queue, outcomes, alerts and cron state of TRAINs, or of every train, in
    the Prometheus text format. The effective time of a log above 8 MiB needs --listen. docs/reference/metrics.md lists
    all metrics.

    \b
    opsctl metrics
    opsctl metrics --textfile /var/lib/node_exporter/textfile/opsctl.prom
    opsctl metrics --listen 127.0.0.1:9400
    """
    if textfile and not textfile.name.endswith(TEXTFILE_SUFFIX):
        raise InputError(f"--textfile {textfile}: node_exporter reads only names that end in {TEXTFILE_SUFFIX}")
    place = parse_address(address) if address else None
    runs = [app.find(train) for train in trains]
    if place:
        _serve(app, runs, place, quick=quick)
    metric_samples = [*gather(app, runs), *([] if quick else effective(app, runs, MAX_LOG_BYTES))]
    if textfile:
        write_file(textfile, exposition(metric_samples))
    else:
        print_result(metric_samples, exposition(metric_samples).rstrip("\n"))


def _serve(app: App, runs: Sequence[RunDir], place: tuple[str, int], *, quick: bool) -> NoReturn:
    viewer = app.as_viewer()
    registry = Fresh(lambda: gather(viewer, runs), app.clock)
    _, url = listen(place, registry)
    print_text(f"serving {url} until Ctrl-C")
    while True:
        registry.effective = () if quick else effective(app, runs)
        app.clock.sleep(EFFECTIVE_EVERY_S)
