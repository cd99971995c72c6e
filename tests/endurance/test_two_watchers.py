"""Many random interleavings of two watchers on a disk that is full now and then."""

import pytest

from tests.unit.alerts.conftest import world
from tests.unit.alerts.test_two_watchers import check, make_watchers

__all__ = ["make_watchers", "world"]


@pytest.mark.parametrize("seed", range(300))
def test_alerts_and_ends_alternate(make_watchers, seed):
    check(make_watchers(seed))
