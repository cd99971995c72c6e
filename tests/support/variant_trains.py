"""Trains of tests/corpus/preflight/variants: one command with files of its own, judged on a cluster without faults."""

import shlex
import tomllib
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opsctl.host.system import SystemRunner
from opsctl.launch.launch_plan import job_spec
from opsctl.preflight.checks import CHECKS
from opsctl.preflight.facts import Facts
from opsctl.preflight.gather_facts import LaunchPlace, gather
from opsctl.preflight.problem import LaunchRequest, Problem, judge
from opsctl.preflight.recipe import read_recipe
from opsctl.settings.loader import SiteSettings, TrainSettings, find_trainer_problems, parse
from opsctl.state.run_dir import RunDir
from tests.support.broken_trains import BASE, CORPUS, make_facts

MODEL = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
BATCH = "--micro-batch-size 4 --global-batch-size 512 --train-iters 1000 --lr 1e-4"
FLAGS = {
    "{megatron}": f"{MODEL} {BATCH} --bf16",
    "{megatron16}": f"{MODEL} {BATCH} --fp16",
    "{megatron13b}": "--num-layers 40 --hidden-size 5120 --num-attention-heads 40 --seq-length 2048"
    " --micro-batch-size 1 --global-batch-size 1024 --train-iters 150000 --bf16",
}
SCRIPTS = ("train.py", "pretrain_gpt.py", "run_clm.py", "deepy.py", "run_train.py", "megatron_gpt_pretraining.py")
"""Programs that exist where the trainer starts."""
SLURM = {"nodes": 1, "time_limit": "20:00:00", "cpus_per_process": 64, "gpus_per_node": 8, "tasks": 4}


@dataclass(frozen=True, kw_only=True)
class Variant:
    name: str
    table: dict[str, Any]

    def find_problems(self, directory: Path) -> list[Problem]:
        for path, text in self._list_files():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text)
        request = self._make_request(directory)
        return judge(CHECKS.values(), request, self._gather(request, directory))

    def _list_files(self) -> list[tuple[str, str]]:
        return [*((name, "") for name in SCRIPTS), ("torchtitan/train.py", ""), *self.table.get("files", {}).items()]

    def _make_request(self, directory: Path) -> LaunchRequest:
        given = self.table.get("command", "python train.py")
        fields: dict[str, Any] = {
            "name": "t",
            "command": [_fill(word) for word in given] if isinstance(given, list) else shlex.split(_fill(given)),
            "slurm": {**SLURM, **self.table.get("slurm", {})},
            "environment": self.table.get("environment", {}),
            "setup": {"directory": str(directory), "lines": self.table.get("setup", []), "modules": ["pytorch"]},
        }
        train = parse(TrainSettings, fields, self.name, extra=find_trainer_problems(fields, layout=False))
        spec = job_spec(train, SiteSettings(root="/trains"))
        return LaunchRequest(train=train, spec=spec, recipe=read_recipe(train, directory))

    def _gather(self, request: LaunchRequest, directory: Path) -> Facts:
        base = make_facts(deepcopy(BASE), {})
        place = LaunchPlace(
            run=RunDir(directory / "run"),
            base=directory,
            filesystems=(),
            measured=directory,
            history=(),
            runner=SystemRunner(),
            user="me",
            now=base.now,
        )
        gpu, step_s = self.table.get("gpu", "A100"), self.table.get("step_s")
        return replace(gather(request, place, base.cluster, {}), gpu=gpu, step_s=step_s)


def _fill(text: str) -> str:
    for name, flags in FLAGS.items():
        text = text.replace(name, flags)
    return text


def read_variants() -> list[Variant]:
    files = sorted((CORPUS / "variants").glob("*.toml"))
    tables = [table for file in files for table in tomllib.loads(file.read_text())["variant"]]
    return [Variant(name=table["name"], table=table) for table in tables]
