"""A site with two trains, and a home directory for the secret of the pages."""

from pathlib import Path

import pytest

from tests.support.dash_site import DashSite, make_alerted_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DashSite:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_alerted_site(tmp_path)
