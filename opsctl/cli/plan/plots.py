"""Tables and curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.extras import required
from opsctl.cli.output import print_table


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotLine:
    name: str
    points: Sequence[tuple[float, float]]
    as_dots: bool = False


def facts(rows: Mapping[str, str]) -> None:
    """Print names and values, a pair per line."""
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(name, value)
    print_table(table)


def listing(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str] = ()) -> None:
    """Print a table with a header; columns are right-aligned, except those in `left`."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        is_left = column in left
        table.add_column(column, justify="left" if is_left else "right", no_wrap=not is_left)
    for row in rows:
        table.add_row(*row)
    print_table(table)


def draw(path: str, *, title: str, x: str, y: str, curves: Sequence[PlotLine]) -> None:
    """Write a plot. Raises MissingPackage without matplotlib, InputError for another suffix."""
    if Path(path).suffix not in (".png", ".svg"):
        raise InputError(f"--plot {path}: needs to end in .png or .svg")
    with required("plot"):
        from matplotlib.figure import Figure  # noqa: PLC0415 (an extra, and slow to import)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=x, ylabel=y)
    for curve in curves:
        xs, ys = zip(*curve.points, strict=True) if curve.points else ((), ())
        axes.plot(xs, ys, "o" if curve.as_dots else "-", label=curve.name, markersize=4)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise OpsctlError(f"{path}: cannot be written: {error.strerror}") from error
