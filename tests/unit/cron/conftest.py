from pathlib import Path

import pytest

from tests.support.cron_context import CronSite


@pytest.fixture
def cron_site(tmp_path: Path) -> CronSite:
    return CronSite(tmp_path)
