"""Rotary positions, and how they are stretched beyond the length that a model was trained with."""

import functools
import math

import torch
from torch import Tensor

from opsctl.trainer.model_config import ModelConfig, RopeScaling


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return `x` [b, heads, s, width] turned by its position; the pairs are (i, i + width / 2), as transformers has."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


@functools.lru_cache(maxsize=4)  # one table for all blocks of a rank with the same positions
def rotations(
    config: ModelConfig, length: int, dtype: torch.dtype, device: torch.device, *, is_local: bool = False
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles of every position, each [length, width of a head].

    `is_local`: for a block with a window, which may have another base and is never stretched then.
    """
    theta = config.local_theta if is_local else config.theta
    scaling = None if is_local and config.kind.local_theta else config.rope_scaling
    width = config.width_of_head
    exponents = torch.arange(0, width, 2, dtype=torch.int64, device=device).float() / width
    frequencies = stretched(1.0 / theta**exponents, scaling)
    angles = torch.outer(torch.arange(length, device=device).float(), frequencies)
    whole = torch.cat((angles, angles), dim=-1)
    factor = 1.0
    if scaling and scaling.kind == "yarn":
        factor = scaling.attention_factor or 0.1 * math.log(max(1.0, scaling.factor)) + 1
    return (whole.cos() * factor).to(dtype), (whole.sin() * factor).to(dtype)


def stretched(frequencies: Tensor, scaling: RopeScaling | None) -> Tensor:
    """Return the rotary frequencies after `scaling` (llama3: as in the model card's code of Llama 3.1)."""
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    unstretched = _unstretched_by_place if scaling.kind == "yarn" else _unstretched_by_turns
    smooth = unstretched(frequencies, scaling).clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies


def _unstretched_by_turns(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Return how much of every frequency stays: in proportion to its turns in the original sequence."""
    turns = scaling.original_sequence * frequencies / (2 * math.pi)
    return (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)


def _unstretched_by_place(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """As `_unstretched_by_turns`, in proportion to the place among the pairs of a head, between two whole places."""
    count = len(frequencies)
    log_theta = -math.log(float(frequencies[-1])) * count / (count - 1) if count > 1 else 1.0

    def place(turns: float) -> float:
        return count * math.log(scaling.original_sequence / (turns * 2 * math.pi)) / log_theta

    first = max(math.floor(place(scaling.high_freq_factor)), 0)
    last = min(math.ceil(place(scaling.low_freq_factor)), 2 * count - 1)
    places = torch.arange(count, dtype=torch.float32, device=frequencies.device)
    return 1 - (places - first) / max(last - first, 0.001)
