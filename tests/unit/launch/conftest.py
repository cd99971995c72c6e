"""A train and a cluster to judge it against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opsctl.config import Site, Train, parse
from opsctl.launch.plan import job_spec
from opsctl.launch.preflight import Facts
from opsctl.model import JobSpec, Limits, Partition

Make = Callable[..., Train]


@pytest.fixture
def train() -> Make:
    """`train(nodes=3)`: a train with a command, its [slurm] changed so; `top={...}` changes the rest."""

    def make(top: dict[str, Any] | None = None, **slurm: Any) -> Train:
        table = {"nodes": 2, "time_limit": "30", "tasks": 3, **slurm}
        return parse(Train, {"name": "gpt", "command": ["true"], "slurm": table, **(top or {})}, "train.toml")

    return make


@pytest.fixture
def spec(train: Make) -> Callable[..., JobSpec]:
    """`spec(nodes=3)`: what that train asks of Slurm."""
    return lambda **slurm: job_spec(train(**slurm), Site(root="/trains"))


@pytest.fixture
def partition() -> Callable[..., Partition]:
    """`partition("gpu", nodes=9)`"""
    return _partition


def _partition(name: str, **changed: Any) -> Partition:
    facts = {"is_default": False, "is_up": True, "nodes": 4, "max_nodes": None, "max_minutes": None}
    return Partition(name=name, **{**facts, **changed})


@pytest.fixture
def facts() -> Callable[..., Facts]:
    """`facts(nodes=("n1",))`: a cluster of four nodes with three partitions, changed so."""

    def make(**changed: Any) -> Facts:
        known: dict[str, Any] = {
            "partitions": (
                _partition("main", is_default=True),
                _partition("short", max_minutes=60, max_nodes=2),
                _partition("closed", is_up=False),
            ),
            "limits": Limits(
                version="22.05.8", cluster="c", max_array_size=1001, priority="priority/multifactor", accounting=True
            ),
            "accounts": ("llm", "vision"),
            "nodes": ("node001", "node002", "node003", "node004"),
            "jobs": (),
        }
        return Facts(**{**known, **changed})

    return make
