"""Whole runs as their makers publish them (tests/corpus/plan/totals.toml), planned on the GPUs that they used."""

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from opsctl.calc.accelerators import accelerator
from opsctl.calc.gpt_size import PUBLISHED, LatentAttention, ModelShape
from opsctl.calc.parallel_layout import Cluster
from opsctl.calc.run_plan import RunInputs, plan_run

FILE = Path(__file__).parents[1] / "corpus" / "plan" / "totals.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTotal:
    row: dict[str, Any]
    planned_gpu_hours: float

    @property
    def ratio(self) -> float:
        """Published over planned."""
        return float(self.row["gpu_hours"]) / self.planned_gpu_hours


@cache
def read_totals() -> tuple[PublishedTotal, ...]:
    rows = tomllib.loads(FILE.read_text())["run"]
    return tuple(PublishedTotal(row=row, planned_gpu_hours=_plan(row)) for row in rows)


def _plan(row: dict[str, Any]) -> float:
    shape = dict(row["shape"])
    if "latent" in shape:
        shape["latent"] = LatentAttention(**shape["latent"])
    model = replace(PUBLISHED[row["preset"]], **shape) if "preset" in row else ModelShape(**shape)
    cluster = Cluster(nodes=row["gpus"] // 8, gpus_per_node=8, gpu=accelerator(row["gpu"]))
    return plan_run(RunInputs(shape=model, cluster=cluster, batch=row["batch"], tokens=row["tokens"] * 1e9)).gpu_hours
