from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.finalized_trains import World, make_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


@pytest.fixture
def checkpoint(world: World) -> Callable[[str], None]:
    """Have the train write a checkpoint."""

    def write(name: str) -> None:
        path = world.run.checkpoints / name
        path.mkdir()
        os.utime(path, (world.clock.now().timestamp(),) * 2)

    return write
