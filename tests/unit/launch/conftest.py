"""Settings of a train and the job that they request."""

from collections.abc import Callable
from typing import Any

import pytest

from opsctl.base.model import JobSpec
from opsctl.launch.launch_plan import job_spec
from opsctl.settings.loader import SiteSettings, TrainSettings, parse

Make = Callable[..., TrainSettings]


@pytest.fixture
def train() -> Make:
    """Return `train(nodes=3)`: train settings with changes to [slurm]; `top={...}` changes other keys."""

    def make(top: dict[str, Any] | None = None, **slurm: Any) -> TrainSettings:
        table = {"nodes": 2, "time_limit": "30", "tasks": 3, **slurm}
        return parse(TrainSettings, {"name": "gpt", "command": ["true"], "slurm": table, **(top or {})}, "train.toml")

    return make


@pytest.fixture
def spec(train: Make) -> Callable[..., JobSpec]:
    """Return `spec(nodes=3)`: the job that these train settings request."""
    return lambda **slurm: job_spec(train(**slurm), SiteSettings(root="/trains"))
