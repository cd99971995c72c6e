from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cron_context import CronWorld


@pytest.fixture
def world(tmp_path: Path) -> CronWorld:
    return CronWorld(tmp_path)
