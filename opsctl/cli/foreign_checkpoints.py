"""The checkpoints of a trainer other than the embedded one, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from opsctl.base.units import format_time
from opsctl.checkpoints.save_directories import SaveDirectory
from opsctl.checkpoints.scan import FoundCheckpoint, list_checkpoints_in
from opsctl.cli.output import cell, print_table, print_text
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.signs import find_directories, read_log_signs
from opsctl.telemetry.progress.train_settings import read_settings

MAX_LISTED = 256
"""Checkpoints of one directory, the newest."""


def find_foreign(run: RunDir) -> tuple[list[SaveDirectory], list[FoundCheckpoint]]:
    """Return the directories that are known to hold checkpoints, and the checkpoints in them, by their steps."""
    settings = read_settings(run)
    if settings is None or run.trainer_config.exists():
        return [], []
    log = read_log_signs(run.main_log, 0, settings.progress.pattern)
    directories = find_directories(run, settings, logged=log.saved_paths)
    found = list_checkpoints_in([directory.path for directory in directories], MAX_LISTED)
    found.sort(key=lambda checkpoint: (checkpoint.step is not None, checkpoint.step or 0, checkpoint.changed_ns))
    return directories, found


def to_rows(found: Sequence[FoundCheckpoint]) -> list[dict[str, Any]]:
    """Return the checkpoints for --json."""
    return [
        {**asdict(checkpoint), "path": str(checkpoint.path), "written": _written(checkpoint)} for checkpoint in found
    ]


def print_foreign(directories: Sequence[SaveDirectory], found: Sequence[FoundCheckpoint]) -> None:
    """Print the checkpoints, and where opsctl looked for them."""
    table = Table("step", "state", "written", "path", "reason", box=None, pad_edge=False)
    for checkpoint in found:
        step = "?" if checkpoint.step is None else str(checkpoint.step)
        texts = (step, checkpoint.completeness.value, format_time(_written(checkpoint)), str(checkpoint.path))
        table.add_row(*map(cell, (*texts, checkpoint.reason)))
    if found:
        print_table(table)
    else:
        print_text("no checkpoints")
    for directory in directories:
        print_text(f"searched: {directory.path} ({directory.reason})")


def _written(checkpoint: FoundCheckpoint) -> datetime:
    return datetime.fromtimestamp(checkpoint.changed_ns / 1e9, UTC)
