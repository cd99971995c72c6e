"""What must be right, or agreed on by all ranks, before the first step."""

from __future__ import annotations

import os

import torch

from trainer.config import TrainerConfig
from trainer.data import Data
from trainer.errors import Refused
from trainer.layout import Layout, check_layout, layout
from trainer.memory import Memory
from trainer.parallel import Control
from trainer.process import Process
from trainer.report import say
from trainer.state import State

_OTHER_ORDER = "samples come in another order, some of them again"


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
    if control.process.is_first and config.seed is None:
        say(f"seed {seed}, drawn at random" if held is None else f"seed {seed}, of the checkpoint")
    if held not in (None, seed):
        _warn(state, control, f"seed {seed} is not the checkpoint's, {held}: {_OTHER_ORDER}")
    return config.model_copy(update={"seed": seed})


def compare_data(data: Data, state: State, control: Control) -> None:
    """Say so if the checkpoint that was resumed saw other data; the next one will say what is read now."""
    if state.data not in ("", str(data)):
        _warn(state, control, f"data is {data}, and was {state.data}: {_OTHER_ORDER}")
    state.data = str(data)


def _warn(state: State, control: Control, text: str) -> None:
    state.notes.append(text)
    if control.process.is_first:
        say(text)


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
