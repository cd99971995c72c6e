"""What a plan command found, and how it is printed: tables and JSON."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from opsctl.cli.output import json_option, make_table, print_result


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The result of a plan command."""

    data: object
    """For --json."""
    shown: Sequence[str | Table]
    """For people, from top to bottom."""


def prints_estimate(function: Callable[..., Estimate]) -> Callable[..., None]:
    """Print the estimate of a command, as JSON with --json."""

    @json_option
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> None:
        estimate = function(*args, **options)
        print_result(estimate.data, *estimate.shown)

    return call


def facts(rows: Mapping[str, str]) -> Table:
    """Return names and values, a pair per line."""
    return make_table(rows.items())


def listing(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str] = ()) -> Table:
    """Return a table with a header; columns are right-aligned, except those in `left`."""
    table = make_table(rows, columns)
    for column in table.columns:
        if column.header not in left:
            column.justify, column.no_wrap = "right", True
    return table
