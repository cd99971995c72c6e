"""Read a run from TensorBoard files, W&B's offline runs and exports, or a table: steps, times and figures.

Every file is one start of the trainer, and so is every place where the step goes back.
"""

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any

from opsctl.base.tables import read_package_table
from opsctl.state.files import open_regular, parse_json, parse_objects
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.log_formats import parse_number
from opsctl.telemetry.progress.log_reader import MAX_BATCH
from opsctl.telemetry.progress.log_summary import UNKNOWN, LogPart, LogStep, LogSummary
from opsctl.telemetry.progress.tracker_records import MetricRow, read_events, read_wandb, to_row

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
MAX_FILES = 2000
MAX_DIRECTORIES = 10_000
MAX_JSON_BYTES = 512 << 20
MAX_LINE_CHARS = 1 << 20
"""Of a table: a longer line is cut."""
MAX_STEP = 1 << 53
"""Floats hold whole numbers exactly up to here."""
MAX_KNOWN_NAMES = 10_000
MAX_PARTS = 10_000
"""Starts of a trainer; a file with more does not count steps."""
MAX_START_S = 6 * 3600
"""A trainer takes at most this long to its first step; a file that is older was copied or named otherwise."""
_EVENTS = re.compile(r"events\.out\.tfevents\.(\d{9,11})\b")
_RUN_NAME = re.compile(r"^.* - (?=[^-])")
"""`run-name - train/loss`, as W&B's pages export curves."""
_WORD = re.compile(r"[\s_-]+")


@cache
def _names() -> tuple[dict[str, str], frozenset[str]]:
    """Return the field of every name, and the words of names that are of something else."""
    table = dict(read_package_table("telemetry/progress/tracker_names.toml"))
    other = frozenset(table.pop("other")["words"])
    fields: dict[str, str] = {}
    for field, names in table.items():
        fields.update(dict.fromkeys(names, field))
    return fields, other


def is_tracker_path(path: Path) -> bool:
    """Whether the path is a directory, or a file of a tracker by its name."""
    return path.is_dir() or bool(_EVENTS.search(path.name)) or path.suffix in (".wandb", *TABLES)


def read_tracker_log(path: Path, *, follow: bool = False) -> LogSummary:
    """Return the summary; without lines if no figure of a step is found. Raises OSError."""
    summary = LogSummary()
    firsts = [(file, next(_read_rows(file, follow=follow), None)) for file in _list_files(path)]
    for file, first in sorted(firsts, key=lambda pair: _begin_key(pair[1])):
        if first is not None:
            _add_rows(summary, _read_rows(file, follow=follow), _find_begin(file, first))
    return summary


def _begin_key(first: MetricRow | None) -> float:
    return first.time if first is not None and not math.isnan(first.time) else math.inf


def _list_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    for place, _, names in islice(os.walk(path), MAX_DIRECTORIES):
        found += [Path(place, name) for name in sorted(names) if _EVENTS.search(name) or name.endswith(".wandb")]
    return found[:MAX_FILES]


def _read_rows(path: Path, *, follow: bool) -> Iterator[MetricRow]:
    """Yield the rows of a file, one at a time: a run of months has millions."""
    with os.fdopen(open_regular(path, follow=follow), "rb") as file:
        yield from _join(_named(_read(path, file)))


def _find_begin(path: Path, first: MetricRow) -> float:
    """Return when the trainer started, by the name of the file or W&B's own clock; nan if neither shows it."""
    match = _EVENTS.search(path.name)
    begin = float(match[1]) if match else first.time - first.values.get("_runtime", UNKNOWN)
    return begin if 0 <= first.time - begin < MAX_START_S else UNKNOWN


def _read(path: Path, file: IO[bytes]) -> Iterable[MetricRow]:
    if path.suffix == ".wandb":
        return read_wandb(file)
    if path.suffix in (".csv", ".tsv"):
        return _read_table(io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline=""), path.suffix)
    if path.suffix in TABLES:
        return _read_json(file.read(min(MAX_JSON_BYTES, os.fstat(file.fileno()).st_size)))
    return read_events(file)


def _read_table(file: IO[str], suffix: str) -> Iterator[MetricRow]:
    """Yield the rows of a table with a header. `Wall time,Step,Value` is TensorBoard's, of one curve."""
    rows = _read_cells(file, suffix)
    header = next(rows, [])
    if [name.lower() for name in header] == ["wall time", "step", "value"]:
        header = ["wall time", "step", "loss"]
    for cells in rows:
        values = {name: parse_number(cell) for name, cell in zip(header, cells, strict=False)}
        yield to_row({name: value for name, value in values.items() if value is not None})


def _read_cells(file: IO[str], suffix: str) -> Iterator[list[str]]:
    """Yield the cells of each line, up to the first that is no line of a table."""
    try:
        yield from csv.reader(
            iter(lambda: file.readline(MAX_LINE_CHARS), ""), delimiter="\t" if suffix == ".tsv" else ","
        )
    except csv.Error:  # a field of more than 128 KiB, or a NUL character
        return


def _read_json(data: bytes) -> Iterator[MetricRow]:
    """Yield the rows of a list of objects, one object a line, or columns with data."""
    content: Any
    try:
        content = parse_json(data)
    except ValueError:
        yield from map(to_row, parse_objects(data))
        return
    if isinstance(content, dict) and isinstance(content.get("columns"), list) and isinstance(content.get("data"), list):
        names = list(map(str, content["columns"]))
        content = [dict(zip(names, row, strict=False)) for row in content["data"] if isinstance(row, list)]
    for item in content if isinstance(content, list) else [content]:
        if isinstance(item, dict):
            yield to_row(item)


def _named(rows: Iterable[MetricRow]) -> Iterator[MetricRow]:
    """Yield the rows with opsctl's names of figures; rows without any are left out."""
    for row in rows:
        values: dict[str, float] = {}
        for name, value in row.values.items():
            field = "_runtime" if name == "_runtime" else find_field(name)
            if field:
                values.setdefault(field, value)
        row.time = values.pop("time", row.time)
        step = values.pop("step", math.nan)
        row.step = int(step) if math.isfinite(step) else row.step
        row.values = values
        if (
            row.step is not None
            and 0 <= row.step <= MAX_STEP
            and values.keys() - {"_runtime", "tokens", "consumed_samples"}
        ):
            yield row


@lru_cache(MAX_KNOWN_NAMES)
def find_field(name: str) -> str:
    """Return the field of a figure's name; empty for a name that says nothing of training."""
    known, other = _names()
    spelled = _WORD.sub(" ", _RUN_NAME.sub("", name).lower()).strip()
    parts = re.split(r"[/.]", spelled)
    if other & set(" ".join(parts).split()):
        return ""
    return known.get(spelled) or known.get(parts[-1].strip(), "")


def _join(rows: Iterable[MetricRow]) -> Iterator[MetricRow]:
    """Join neighbouring rows of one step, as TensorBoard writes a row for each figure."""
    current: MetricRow | None = None
    for row in rows:
        if current is not None and current.step == row.step:
            current.values = {**row.values, **current.values}
            current.time = row.time if math.isnan(current.time) else current.time
            continue
        if current is not None:
            yield current
        current = row
    if current is not None:
        yield current


def _add_rows(summary: LogSummary, rows: Iterable[MetricRow], begin: float) -> None:
    """Add the rows of one start. A step that goes back begins another part."""
    before: MetricRow | None = None
    if len(summary.parts[-1]):
        summary.parts.append(LogPart())
    summary.parts[-1].first_stamp = begin
    for row in rows:
        assert row.step is not None
        if before is not None and before.step is not None and row.step < before.step:
            if len(summary.parts) >= MAX_PARTS:
                return
            summary.parts.append(LogPart())
            before = None
        summary.parts[-1].add(_to_step(row, before))
        summary.parts[-1].last_stamp = row.time
        _add_figures(summary, row)
        before = row


def _to_step(row: MetricRow, before: MetricRow | None) -> LogStep:
    assert row.step is not None
    step_s = row.values.get("step_s", row.values.get("step_ms", UNKNOWN) / 1000)
    if math.isnan(step_s) and before is not None and before.step is not None and row.step > before.step:
        step_s = (row.time - before.time) / (row.step - before.step)
    batch = row.values.get("global_batch", 0.0)
    return LogStep(
        step=row.step,
        step_s=step_s if step_s >= 0 else UNKNOWN,
        earliest=row.time,
        latest=row.time,
        batch=int(batch) if 0 < batch < MAX_BATCH else 0,
        stall_s=UNKNOWN,
        evaluated=0,
    )


_WHOLE = frozenset({"tokens", "consumed_samples", "global_batch"})
_OF_ITERATION = frozenset(Iteration.__dataclass_fields__)


def _add_figures(summary: LogSummary, row: MetricRow) -> None:
    assert row.step is not None
    finite = {name: value for name, value in row.values.items() if name in _OF_ITERATION and math.isfinite(value)}
    figures = {name: int(value) if name in _WHOLE else value for name, value in finite.items()}
    summary.take_figures(Iteration(step=row.step, **figures))  # type: ignore[arg-type]  # each field's type is in _WHOLE
