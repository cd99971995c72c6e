"""What must be right, or agreed on by all ranks, before the first step."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from opsctl.trainer.batches import Data, open_data
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.errors import Refused
from opsctl.trainer.heartbeats import say
from opsctl.trainer.memory_usage import MemoryUsage
from opsctl.trainer.process_groups import Control
from opsctl.trainer.rank_layout import Layout, check_layout, layout
from opsctl.trainer.rank_process import RankProcess
from opsctl.trainer.run_state import RunState

_OTHER_ORDER = "samples come in another order, some of them again"


def checked(config: TrainerConfig, process: RankProcess, checkpoints: Path) -> tuple[Layout, Data]:
    """Which rank does what, and on what data. Raises Refused, with every problem at once."""
    problems = [*check_layout(config, process.world_size), *cannot_save(checkpoints)]
    try:
        data = open_data(config)
    except Refused as error:
        problems.append(str(error))
    if problems:
        raise Refused("; ".join(problems))
    return layout(config, process.world_size), data


def cannot_save(checkpoints: Path) -> list[str]:
    """What is wrong with the directory of checkpoints, or with the one that it is to be made in.

    A full disk is not: it may have room again when a save is due.
    """
    there = next(
        (path for path in (checkpoints, *checkpoints.absolute().parents) if os.path.lexists(path)), checkpoints
    )
    if not there.is_dir():
        return [f"checkpoints {checkpoints} cannot be saved: {there} is not a directory"]
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        return [f"checkpoints {checkpoints} cannot be saved: {there} is not writable for user {os.getuid()}"]
    return []


def settle_seed(config: TrainerConfig, state: RunState, control: Control) -> TrainerConfig:
    """`config` with the seed that all ranks use: the given one, the newest checkpoint's, or one drawn now."""
    held = control.from_first(state.seed)
    drawn = control.from_first(int.from_bytes(os.urandom(4)))
    seed = next(number for number in (config.seed, held, drawn) if number is not None)
    if control.process.is_first and config.seed is None:
        say(f"seed {seed}, drawn at random" if held is None else f"seed {seed}, of the checkpoint")
    if held not in (None, seed):
        _warn(state, control, f"seed {seed} is not the checkpoint's, {held}: {_OTHER_ORDER}")
    return config.model_copy(update={"seed": seed})


def compare_data(data: Data, state: RunState, control: Control) -> None:
    """Say so if the checkpoint that was resumed saw other data; the next one will say what is read now."""
    if state.data not in ("", str(data)):
        _warn(state, control, f"data is {data}, and was {state.data}: {_OTHER_ORDER}")
    state.data = str(data)


def _warn(state: RunState, control: Control, text: str) -> None:
    state.notes.append(text)
    if control.process.is_first:
        say(text)


def settle_randomness(config: TrainerConfig, process: RankProcess) -> None:
    """Start this rank's random numbers; have the GPU do the same each time, if that is asked for."""
    assert config.seed is not None
    torch.manual_seed(config.seed * 1_000_003 + process.rank)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
        torch.backends.cudnn.benchmark = False


def memory_limits(config: TrainerConfig, process: RankProcess) -> MemoryUsage:
    """The limits of this run, watched by this rank."""
    limits = config.limits
    return MemoryUsage(where=process.name, host_limit=limits.host_memory_percent, gpu_limit=limits.gpu_memory_percent)


def device_name() -> str:
    """The GPU's, as its driver says it; empty without one."""
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else ""
