"""One browser for the tests of a module."""

from collections.abc import Iterator

import pytest

from tests.support.chromium import PROGRAM, Browser, browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM
    with browser(PROGRAM, tmp_path_factory.mktemp("chromium")) as driver:
        yield driver
