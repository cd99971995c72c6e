"""Fixtures of the tests of watchdogs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.watch_context import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
def minutes() -> Callable[[float], timedelta]:
    return lambda count: timedelta(minutes=count)
