"""`opsctl nccl`: failed connections and late ranks, from NCCL debug output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from opsctl.cli.output import json_option, print_json, print_text
from opsctl.diagnosis.nccl_debug import read_nccl_debug, render_nccl
from opsctl.state.files import open_regular


@click.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@json_option
def nccl(logs: tuple[Path, ...], *, as_json: bool) -> None:
    """Read NCCL debug output for failed or late ranks.

    LOGS are files or directories written with NCCL_DEBUG=INFO. Shows failed connections, the collectives that each
    rank started, and ranks that are behind or started another collective.

    \b
    opsctl nccl main_log.txt
    opsctl nccl nccl-debug/
    """
    summary = read_nccl_debug(_lines(logs))
    if not as_json:
        print_text("\n".join(render_nccl(summary)))
        return
    print_json(
        {
            "failures": [{"host": f.host, "peer": f.peer, "why": f.why, "times": f.times} for f in summary.failures],
            "groups": [
                {
                    "name": group.name,
                    "ranks": group.size,
                    "absent": group.count_absent(),
                    "calls": {str(rank): dict(calls) for rank, calls in group.calls.items()},
                    "behind": {str(rank): str(call) for rank, call in group.find_behind().items()},
                    "odd": {str(rank): str(call) for rank, call in group.find_odd().items()},
                }
                for group in summary.groups
            ],
            "warnings": summary.warnings,
            "speakers": {text: [str(rank) for rank in ranks] for text, ranks in summary.speakers.items()},
        }
    )


def _lines(logs: tuple[Path, ...]) -> Iterator[bytes]:
    for path in logs:
        for log in sorted(path.iterdir()) if path.is_dir() else [path]:
            if log.is_file():
                with os.fdopen(open_regular(log, follow=True), "rb") as lines:
                    yield from lines
