"""A train, and what it asks of Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opsctl.launch.launch_plan import job_spec
from opsctl.model import JobSpec
from opsctl.settings.loader import SiteSettings, TrainSettings, parse

Make = Callable[..., TrainSettings]


@pytest.fixture
def train() -> Make:
    """`train(nodes=3)`: a train with a command, its [slurm] changed so; `top={...}` changes the rest."""

    def make(top: dict[str, Any] | None = None, **slurm: Any) -> TrainSettings:
        table = {"nodes": 2, "time_limit": "30", "tasks": 3, **slurm}
        return parse(TrainSettings, {"name": "gpt", "command": ["true"], "slurm": table, **(top or {})}, "train.toml")

    return make


@pytest.fixture
def spec(train: Make) -> Callable[..., JobSpec]:
    """`spec(nodes=3)`: what that train asks of Slurm."""
    return lambda **slurm: job_spec(train(**slurm), SiteSettings(root="/trains"))
