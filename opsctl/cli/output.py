"""How verbs print: tables for people, JSON for programs, colours only on a terminal."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable
from datetime import date
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from opsctl.errors import OpsctlError
from opsctl.telemetry.logs.log_lines import for_terminal

F = TypeVar("F", bound=Callable[..., Any])
BLANKS = re.compile(r" +$", re.MULTILINE)

json_option: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
dry_run_option: Callable[[F], F] = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)


def complete_trains(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """For the shell: the trains whose names begin so; none where the settings do not hold."""
    from opsctl.app import build  # noqa: PLC0415 (pydantic and all, which --help can do without)
    from opsctl.state.run_dir import all_trains  # noqa: PLC0415 (as above)

    try:
        root = build(ctx.find_root().params.get("site")).root
    except OpsctlError:
        return []
    return [run.name for run in all_trains(root) if run.name.startswith(begun)]


train_argument: Callable[[F], F] = click.argument("train", shell_complete=complete_trains)
optional_train: Callable[[F], F] = click.argument("train", required=False, shell_complete=complete_trains)


def print_json(data: object) -> None:
    click.echo(json.dumps(finite(data), indent=2, default=in_json, ensure_ascii=False, allow_nan=False))


def in_json(value: object) -> str:
    """What JSON has no word for: times as ISO 8601 has them."""
    return value.isoformat() if isinstance(value, date) else str(value)


def finite(data: Any) -> Any:
    """The same without nan and infinity, which JSON does not know: null."""
    if isinstance(data, dict):
        return {key: finite(each) for key, each in data.items()}
    if isinstance(data, list | tuple):
        return [finite(each) for each in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def say(text: str) -> None:
    click.echo(harmless(text) if sys.stdout.isatty() else text)


def harmless(text: str) -> str:
    """For a terminal: what logs, nodes and team-mates say may colour it, and do nothing else to it."""
    return "\n".join(for_terminal(line.encode(errors="replace")) for line in text.split("\n"))


def cell(text: str, style: str = "") -> Text:
    """The same for a table, which has colours of its own."""
    return Text(re.sub(r"\x1b\[[0-?]*m", "", harmless(text)), style)


def console() -> Console:
    """Where tables go. Elsewhere than on a terminal a line is as long as it needs to be and no longer, for grep's
    sake. Brackets and colons are what they are: names and paths may hold them."""
    plain = Console(highlight=False, markup=False, emoji=False)
    if plain.is_terminal:
        return plain
    return Console(highlight=False, markup=False, emoji=False, width=1000, file=_UnpaddedStream())


def print_table(table: Table) -> None:
    """Nothing of a cell is cut off, however narrow the terminal: what stands there may have to be typed."""
    for column in table.columns:
        column.overflow = "fold"
    console().print(table)


class _UnpaddedStream(io.StringIO):
    """Standard output without the blanks by which a table's last column is filled up."""

    def write(self, text: str) -> int:
        click.echo(BLANKS.sub("", text), nl=False)
        return len(text)
