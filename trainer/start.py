"""What must be right, or agreed on by all ranks, before the first step."""

from __future__ import annotations

import os

import torch

from trainer.config import TrainerConfig
from trainer.errors import Refused
from trainer.layout import Layout, check_layout, layout
from trainer.memory import Memory
from trainer.parallel import Control
from trainer.process import Process
from trainer.report import say
from trainer.state import State


def checked_layout(config: TrainerConfig, process: Process) -> Layout:
    """Which rank does what. Raises Refused, with every problem at once."""
    problems = check_layout(config, process.world_size)
    if problems:
        raise Refused("; ".join(problems))
    return layout(config, process.world_size)


def settle_seed(config: TrainerConfig, state: State, control: Control) -> TrainerConfig:
    """`config` with the seed that all ranks use: the given one, the newest checkpoint's, or one drawn now."""
    held = control.from_first(state.seed)
    drawn = control.from_first(int.from_bytes(os.urandom(4)))
    seed = next(each for each in (config.seed, held, drawn) if each is not None)
    if control.process.is_first:
        if held not in (None, seed):
            say(f"seed {seed} is not the checkpoint's, {held}: samples come in another order, some of them again")
        if config.seed is None:
            say(f"seed {seed}, drawn at random" if held is None else f"seed {seed}, of the checkpoint")
    state.seed = seed
    return config.model_copy(update={"seed": seed})


def settle_randomness(config: TrainerConfig, process: Process) -> None:
    """Start this rank's random numbers; have the GPU do the same each time, if that is asked for."""
    assert config.seed is not None
    torch.manual_seed(config.seed * 1_000_003 + process.rank)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
        torch.backends.cudnn.benchmark = False


def memory_limits(config: TrainerConfig, process: Process) -> Memory:
    """The limits of this run, watched by this rank."""
    limits = config.limits
    return Memory(where=process.name, host_limit=limits.host_memory_percent, gpu_limit=limits.gpu_memory_percent)


def device_name() -> str:
    """The GPU's, as its driver says it; empty without one."""
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else ""
