"""What a plan command found, and how it is printed: tables, JSON, a plot."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.extras import required
from opsctl.cli.output import json_option, make_table, print_json, print_result, wants_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Lines over one axis."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    """Points by the name of a line."""
    dots: Collection[str] = ()
    """The lines that are drawn as dots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The result of a plan command."""

    data: object
    """For --json."""
    shown: Sequence[str | Table]
    """For people, from top to bottom."""
    plot: Plot | None = None


def prints_estimate(function: Callable[..., Estimate]) -> Callable[..., None]:
    """Print the estimate of a command, as JSON with --json; draw its plot if the command has --plot."""

    @json_option
    @functools.wraps(function)
    def call(*args: Any, plot: str | None = None, **options: Any) -> None:
        estimate = function(*args, **options)
        if plot and estimate.plot:
            _draw(plot, estimate.plot)
        if wants_json():
            print_json(estimate.data)
            return
        for part in estimate.shown:
            print_result(estimate.data, part)

    return call


plot_option: Callable[[Callable[..., None]], Callable[..., None]] = click.option(
    "--plot", metavar="FILE", help="Draw a plot into FILE.png or FILE.svg (needs matplotlib)."
)


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


def _draw(path: str, plot: Plot) -> None:
    """Write a plot. Raises MissingPackage without matplotlib, InputError for another suffix."""
    if Path(path).suffix not in (".png", ".svg"):
        raise InputError(f"--plot {path}: needs to end in .png or .svg")
    with required("plot"):
        from matplotlib.figure import Figure  # noqa: PLC0415 (an extra, and slow to import)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    for name, points in plot.lines.items():
        xs, ys = zip(*points, strict=True) if points else ((), ())
        axes.plot(xs, ys, "o" if name in plot.dots else "-", label=name, markersize=4)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise OpsctlError(f"{path}: cannot be written: {error.strerror}") from error
