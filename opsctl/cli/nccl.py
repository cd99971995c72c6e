"""`opsctl nccl`: failed connections and late ranks, from NCCL debug output and the flight recorder's dumps."""

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from opsctl.cli.options import list_files
from opsctl.cli.output import json_option, print_result
from opsctl.diagnosis.flight_recorder import describe_dumps, find_dumps, find_problems
from opsctl.diagnosis.nccl_debug import read_nccl_debug, render_nccl
from opsctl.state.files import open_regular


@click.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@json_option
def nccl(logs: tuple[Path, ...]) -> None:
    """Read NCCL debug output for failed or late ranks.

    LOGS are files or directories written with NCCL_DEBUG=INFO. Shows failed connections, the collectives that each
    rank started, and ranks that are behind or started another collective. Dumps of PyTorch's flight recorder among
    LOGS name the collective that did not end, and the ranks that never came.

    \b
    opsctl nccl main_log.txt
    opsctl nccl nccl-debug/
    opsctl nccl RUN/attempts/4211_3.0/
    """
    summary = read_nccl_debug(_lines(logs))
    dumps = find_dumps(logs)
    print_result(
        {
            "failures": summary.failures,
            "groups": [
                {
                    "name": group.name,
                    "ranks": group.size,
                    "absent": group.size - len(group.last),
                    "calls": {str(rank): dict(calls) for rank, calls in group.calls.items()},
                    "behind": {str(rank): str(call) for rank, call in group.find_behind().items()},
                    "odd": {str(rank): str(call) for rank, call in group.find_odd().items()},
                }
                for group in summary.groups
            ],
            "warnings": summary.warnings,
            "speakers": {text: [str(rank) for rank in ranks] for text, ranks in summary.speakers.items()},
            "flight_dumps": len(dumps),
            "collectives": list(map(asdict, find_problems(dumps))),
        },
        "\n".join([*describe_dumps(dumps), *render_nccl(summary, has_dumps=bool(dumps))]),
    )


def _lines(logs: tuple[Path, ...]) -> Iterator[bytes]:
    for log in list_files(logs):
        with os.fdopen(open_regular(log, follow=True), "rb") as lines:
            yield from lines
