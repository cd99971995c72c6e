"""Output of commands: tables for people, JSON for programs, colours only on a terminal."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from opsctl.base.errors import OpsctlError, writing
from opsctl.base.findings import Severity, to_data
from opsctl.state.files import make_directories, write_atomic
from opsctl.telemetry.logs.log_lines import harmless, plain

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
BLANKS = re.compile(r" +$", re.MULTILINE)

SEVERITY_STYLES = {
    Severity.OK: "green",
    Severity.UNKNOWN: "magenta",
    Severity.WARNING: "yellow",
    Severity.CRITICAL: "red",
}
JSON_KEY = "opsctl.json"
"""Key in `meta` of click's context."""


def _note_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 (click's signature)
    ctx.meta[JSON_KEY] = value


json_option: Callable[[F], F] = click.option(
    "--json", is_flag=True, expose_value=False, callback=_note_json, help="Print JSON."
)
"""--json for commands that print by `print_result`, or ask `wants_json`."""


def app_and_json(command: Callable[Concatenate[Any, P], R]) -> Callable[P, R]:
    """Pass the App to a command, and give the command --json."""
    return json_option(click.pass_obj(command))


def app_json_and_dry_run(command: Callable[Concatenate[Any, P], R]) -> Callable[P, R]:
    """Pass the App to a command, and give the command --dry-run and --json."""
    dry_run = click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
    return dry_run(app_and_json(command))


def wants_json() -> bool:
    """Return whether the running command was called with --json."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(JSON_KEY))


def complete_trains(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return the trains whose names start with `begun`; none if the settings are invalid."""
    params = ctx.find_root().params
    if params.get("host") is not None:
        from opsctl.cli.remote_host import complete_on_host  # noqa: PLC0415 (only for --host)

        return complete_on_host(params["host"], params["host_command"], begun)
    from opsctl.app import build  # noqa: PLC0415 (--help starts without pydantic)
    from opsctl.state.run_dir import all_trains  # noqa: PLC0415 (as above)

    try:
        runs = all_trains(build(params.get("site")).root)
    except OpsctlError:
        return []
    return [run.name for run in runs if run.name.startswith(begun)]


train_argument: Callable[[F], F] = click.argument("train", shell_complete=complete_trains)
optional_train: Callable[[F], F] = click.argument("train", required=False, shell_complete=complete_trains)


def print_json(data: object) -> None:
    click.echo(to_json(data))


def to_json(data: object, *, indent: int | None = 2) -> str:
    return json.dumps(to_data(data), indent=indent, default=in_json, ensure_ascii=False, allow_nan=False)


def in_json(value: object) -> str:
    """Return a value that JSON has no type for as text; times in ISO 8601."""
    return value.isoformat() if isinstance(value, date) else str(value)


def print_result(data: object, *parts: str | RenderableType) -> None:
    """Print `data` with --json, else the parts one below the other: texts, tables and other things that rich draws."""
    if wants_json():
        print_json(data)
    else:
        print_parts(*parts)


def print_parts(*parts: str | RenderableType) -> None:
    """Print texts, tables and so on. Cells of tables are folded, never cut off: people copy commands from them."""
    for part in parts:
        if isinstance(part, str):
            print_text(part)
            continue
        for column in part.columns if isinstance(part, Table) else ():
            column.overflow = "fold"
        console().print(part)


def print_train_result(train: str, data: Mapping[str, object], text: str) -> None:
    """Print what a command did to a train, or would do."""
    print_result({"train": train, **data}, f"{train}: {text}")


def print_text(text: str) -> None:
    click.echo(harmless(text) if sys.stdout.isatty() else text)


def print_unless_json(text: str) -> None:
    if not wants_json():
        print_text(text)


def print_on_stderr(text: str) -> None:
    click.echo(harmless(text) if sys.stderr.isatty() else text, err=True)


def report_problems(problems: Sequence[str]) -> int:
    """Print what a result lacks; return the exit status of the command."""
    for problem in problems:
        print_on_stderr(f"opsctl: {problem}")
    return 1 if problems else 0


def write_file(path: Path, data: str | bytes, *, with_parents: bool = False) -> None:
    """Write a file that the user named, whole or not at all. Raises RunDirError."""
    with writing(path):
        if with_parents:
            make_directories(path.parent)
        write_atomic(path, data)


def cell(text: str, style: str = "") -> Text:
    """Return harmless text without colours, for a table cell."""
    return Text(plain(text), style)


def console() -> Console:
    """Return the console for tables.

    Off a terminal, lines are not wrapped and not padded, so that grep finds whole rows. Markup and emoji are off,
    because names and paths may contain brackets and colons.
    """
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False, emoji=False)
    pipe = _UnpaddedStream()  # rich would take a pipe for a terminal if FORCE_COLOR is set
    return Console(highlight=False, markup=False, emoji=False, width=1000, file=pipe, force_terminal=False)


def make_table(rows: Iterable[Sequence[str | Text]], columns: Sequence[str] = ()) -> Table:
    """Return a table without lines, and without a head if it has no names of columns."""
    table = Table(*columns, box=None, pad_edge=False) if columns else Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*(text if isinstance(text, Text) else cell(text) for text in row))
    return table


class _UnpaddedStream(io.StringIO):
    """Standard output without the trailing blanks that pad the last column of a table."""

    def write(self, text: str) -> int:
        click.echo(BLANKS.sub("", text), nl=False)
        return len(text)
