"""Fixtures of the tests of watchdogs."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.watch_context import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def minutes() -> Callable[[float], timedelta]:
    return lambda count: timedelta(minutes=count)
