"""Published configurations of runs that work (tests/corpus/preflight/configurations), written as trains of opsctl."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opsctl.calc.accelerators import gpu_kind
from opsctl.launch.launch_plan import job_spec
from opsctl.preflight.checks import CHECKS
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, judge
from opsctl.preflight.recipe import Recipe, read_recipe
from opsctl.settings.loader import SiteSettings, TrainSettings, parse
from tests.support.cases import read_table

FILE = Path(__file__).parents[1] / "corpus" / "preflight" / "configurations" / "configurations.jsonl"
MEGATRON = read_table(__file__, "megatron")
TORCHTITAN = {
    "parallelism.tensor_parallel_degree": ("parallelism", "tp"),
    "parallelism.pipeline_parallel_degree": ("parallelism", "pp"),
    "parallelism.context_parallel_degree": ("parallelism", "cp"),
    "training.local_batch_size": ("batch", "micro"),
    "training.global_batch_size": ("batch", "global"),
}
STARTERS = frozenset(
    {"torchrun", "deepspeed", "accelerate", "mpirun", "torch.distributed.run", "torch.distributed.launch"}
)
"""Programs and modules that start the ranks of a node."""
LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "mpirun", "python", "python3")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One row, and the directory for the files that its command names."""

    row: dict[str, Any]
    directory: Path

    @property
    def gpus_per_node(self) -> int:
        hardware = self.row["hardware"]
        return hardware["gpus_per_node"] or min(8, hardware["gpus"] or 8)

    @property
    def nodes(self) -> int:
        hardware = self.row["hardware"]
        return hardware["nodes"] or max(1, (hardware["gpus"] or 8) // self.gpus_per_node)

    def command(self) -> list[str]:
        """Return the command in the words of the row's trainer."""
        keys, trainer = self.row["keys"], self.row["trainer"]
        own = next((line.split() for line in keys.splitlines() if line.split()[:1] and is_launcher(line)), [])
        if trainer.startswith("Megatron"):
            flags = [word for line in keys.splitlines() if line.startswith("--") for word in words(line)]
            return ["python", "pretrain_gpt.py", *self.pairs(MEGATRON, "--", " "), *self.switches(), *flags]
        if trainer == "torchtitan":
            if "[" in keys.splitlines()[0]:
                return ["python", "train.py", "--job.config_file", self.write("config.toml", keys)]
            return ["python", "train.py", *self.pairs(TORCHTITAN, "--", " ")]
        if trainer.startswith("NeMo"):
            names = {f"model.{name.replace('-', '_')}": place for name, place in MEGATRON.items()}
            return [*(own or ["python", "main.py"]), *self.pairs(names, "", "=")]
        if own and trainer != "GPT-NeoX":
            return own
        keys = "\n".join(line for line in keys.splitlines() if not line.startswith("sbatch"))
        suffix = "toml" if " = " in keys and ": " not in keys else "yaml"
        return ["python", "train.py", "--config", self.write(f"config.{suffix}", keys.replace('",\n', '"\n'))]

    def switches(self) -> list[str]:
        """Return the switches of Megatron for what the row states. Megatron-Bridge shards the optimizer by default."""
        row, model = self.row, self.row["model"] or {}
        zero, is_bridge = row["parallelism"]["zero"], row["trainer"] == "Megatron-Bridge"
        stated = {
            "--swiglu": model.get("gated_mlp"),
            "--untie-embeddings-and-output-weights": model.get("tied_embeddings") is False,
            "--use-megatron-fsdp": zero == "fsdp",
            "--use-distributed-optimizer": zero == 1 or (is_bridge and zero is None),
            "--recompute-granularity=full": row["recompute"] == "full",
            "--recompute-granularity=selective": row["recompute"] == "selective",
            "--sequence-parallel": is_bridge,
            "--fp8-format=hybrid": row["precision"] == "fp8",
            "--bf16": row["precision"] in {"bf16", "fp8"},
        }
        return [switch for switch, is_set in stated.items() if is_set]

    def pairs(self, names: dict[str, tuple[str, str]], prefix: str, joint: str) -> list[str]:
        found: list[str] = []
        for name, (table, key) in names.items():
            value = self.row[key] if table == "row" else (self.row[table] or {}).get(key)
            if value is not None:
                found += f"{prefix}{name}{joint}{value}".split()
        return found

    def write(self, name: str, text: str) -> str:
        (self.directory / name).write_text(text)
        return name

    def make_request(self, *, by_torchrun: bool) -> LaunchRequest:
        """Return the launch: a task for each GPU, or one task on a node whose launcher starts the ranks."""
        command, gpus = self.command(), self.gpus_per_node
        is_launched = any(Path(word).name in STARTERS for word in command)
        if by_torchrun and not is_launched:
            command = ["torchrun", "--nproc-per-node", str(gpus), "--nnodes", str(self.nodes), *command[1:]]
        per_gpu = not (by_torchrun or is_launched)
        slurm = {
            "nodes": self.nodes,
            "processes_per_node": gpus if per_gpu else 1,
            "cpus_per_process": 8 if per_gpu else 64,
            "gpus_per_node": gpus,
            "time_limit": find_time_limit(self.row["keys"]),
        }
        train = parse(TrainSettings, {"name": "real", "command": command, "slurm": slurm}, self.row["id"])
        spec = job_spec(train, SiteSettings(root="/trains"))
        return LaunchRequest(train=train, spec=spec, recipe=self.read(train))

    def read(self, train: TrainSettings) -> Recipe:
        return read_recipe(train, self.directory)

    def find_problems(self, *, by_torchrun: bool) -> list[Problem]:
        facts = Facts(
            now=datetime(2026, 1, 1, tzinfo=UTC), user="me", gpu=gpu_kind([self.row["hardware"]["gpu"] or ""])
        )
        return judge(CHECKS.values(), self.make_request(by_torchrun=by_torchrun), facts)


def is_launcher(line: str) -> bool:
    return Path(line.split(maxsplit=1)[0]).name in LAUNCHERS


def words(line: str) -> list[str]:
    return [word.strip("'\"") for word in line.split()]


def find_time_limit(keys: str) -> str:
    match = re.search(r"#SBATCH --time[ =](\S+)", keys)
    return match[1] if match else "20:00:00"


def read_configurations(half: str, directory: Path) -> Iterator[Configuration]:
    """Yield the configurations of one half. The test half is only counted, never looked at."""
    for line in FILE.read_text().splitlines():
        row = json.loads(line)
        if row["half"] == half:
            yield Configuration(row=row, directory=directory)
