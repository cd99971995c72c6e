"""A train and its journal."""

from pathlib import Path

import pytest

from opsctl.host.system import SystemClock
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    run = RunDir(tmp_path / "gpt")
    run.create()
    return Journal(run, SystemClock())
