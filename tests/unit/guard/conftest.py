import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.finalized_trains import QueuedTrain, make_train


@pytest.fixture
def train(tmp_path: Path) -> QueuedTrain:
    return make_train(tmp_path)


@pytest.fixture
def checkpoint(train: QueuedTrain) -> Callable[[str], None]:
    """Have the train write a checkpoint."""

    def write(name: str) -> None:
        path = train.run.checkpoints / name
        path.mkdir()
        (path / "weights").write_text("1")
        os.utime(path, (train.clock.now().timestamp(),) * 2)

    return write
