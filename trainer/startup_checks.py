"""Checks, and agreements of all ranks, before the first step."""

import os
from pathlib import Path

import torch

from opsctl.trainer.batches import Data, open_data
from opsctl.trainer.checkpoint.resume import Found
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.errors import Refused
from opsctl.trainer.heartbeats import print_line, warn
from opsctl.trainer.memory_usage import MemoryUsage
from opsctl.trainer.precision import choose_precision, read_processor
from opsctl.trainer.process_groups import Control
from opsctl.trainer.rank_layout import Layout, check_layout, layout
from opsctl.trainer.rank_process import RankProcess
from opsctl.trainer.run_state import RunState

_OTHER_ORDER = "samples come in another order, some of them again"


def check_start(config: TrainerConfig, process: RankProcess, checkpoints: Path) -> tuple[Layout, Data]:
    """Return the layout and the data. Raises Refused with every problem at once."""
    problems = [*check_layout(config, process.world_size), *save_problems(checkpoints)]
    try:
        data = open_data(config)
    except Refused as error:
        problems.append(str(error))
    if problems:
        raise Refused("; ".join(problems))
    return layout(config, process.world_size), data


def save_problems(checkpoints: Path) -> list[str]:
    """Return the problems of the directory of checkpoints, or of the nearest existing parent directory.

    A full disk is no problem yet: space may be free again when a save is due.
    """
    candidates = (checkpoints, *checkpoints.absolute().parents)
    nearest = next((path for path in candidates if os.path.lexists(path)), checkpoints)
    if not nearest.is_dir():
        return [f"checkpoints {checkpoints} cannot be saved: {nearest} is not a directory"]
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        return [f"checkpoints {checkpoints} cannot be saved: {nearest} is not writable for user {os.getuid()}"]
    return []


def choose_seed(config: TrainerConfig, state: RunState, control: Control) -> TrainerConfig:
    """Return `config` with the seed of all ranks: the configured one, else the checkpoint's, else a drawn one."""
    saved = control.from_first(state.seed)
    drawn = control.from_first(int.from_bytes(os.urandom(4)))
    seed = next(number for number in (config.seed, saved, drawn) if number is not None)
    if control.process.is_first and config.seed is None:
        print_line(f"seed {seed}, drawn at random" if saved is None else f"seed {seed}, of the checkpoint")
    if saved not in (None, seed):
        warn(state, control.process, f"seed {seed} is not the checkpoint's, {saved}: {_OTHER_ORDER}")
    return config.model_copy(update={"seed": seed})


def resolve_precision(config: TrainerConfig, found: Found | None, control: Control) -> TrainerConfig:
    """Return `config` with the precision of all ranks; if it is `auto`, that of the checkpoint `found`, or rank 0's."""
    if config.precision != "auto":
        return config
    gpu_has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if torch.cuda.is_available() else None
    processor = read_processor(os.environ)
    precision, reason = control.from_first(
        choose_precision(saved=found.saved.precision if found else None, gpu_has_bf16=gpu_has_bf16, processor=processor)
    )
    if control.process.is_first:
        print_line(f"precision {precision}: {reason}")
    return config.model_copy(update={"precision": precision})


def compare_data(data: Data, state: RunState, control: Control) -> None:
    """Warn if the resumed checkpoint was trained on other data; the next checkpoint records the current data."""
    if not data.has_same_past(state):
        warn(state, control.process, f"data is {data.order}, and was {state.data}: {_OTHER_ORDER}")
    state.data = data.order


def seed_randomness(config: TrainerConfig, process: RankProcess) -> None:
    """Seed this rank's random numbers; select reproducible GPU kernels if `deterministic` is set."""
    assert config.seed is not None
    torch.manual_seed(config.seed * 1_000_003 + process.rank)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
        torch.backends.cudnn.benchmark = False


def memory_limits(config: TrainerConfig, process: RankProcess) -> MemoryUsage:
    limits = config.limits
    return MemoryUsage(where=process.name, host_limit=limits.host_memory_percent, gpu_limit=limits.gpu_memory_percent)


def gpu_name() -> str:
    """Return the driver's name of the GPU; empty without a GPU."""
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else ""
