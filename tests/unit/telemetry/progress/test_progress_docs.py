"""docs/reference/progress.md names every format and every layout. `pytest <this file>`"""

from __future__ import annotations

from pathlib import Path

from opsctl.checkpoints.layouts import load_layouts
from opsctl.checkpoints.save_directories import load_rows
from opsctl.telemetry.progress.log_formats import load_formats

PAGE = Path("docs/reference/progress.md").read_text(encoding="utf-8")


def test_page_names_every_format() -> None:
    assert [row.name for row in load_formats() if f"| {row.name} |" not in PAGE] == []


def test_page_names_every_layout() -> None:
    assert [layout.name for layout in load_layouts() if f"| {layout.name} |" not in PAGE] == []


def test_page_names_every_option() -> None:
    options = [option for row in load_rows() for option in row.options]
    assert [option for option in options if f"`{option}`" not in PAGE] == []
