"""Parameters and floating-point operations of a model by the shapes of its matrices; peaks of GPUs."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opsctl.trainer.model_config import ModelConfig

PEAK_TFLOPS: dict[str, float] = tomllib.loads(files("opsctl.trainer").joinpath("peak_tflops.toml").read_text())
"""Peaks in 10¹² operations per second, by a part of the driver's name."""


def peak_tflops(device: str) -> float | None:
    """Return the peak of a GPU by its driver's name, such as `NVIDIA A100-SXM4-80GB`; None if unknown."""
    words = device.replace("-", " ").upper()
    known = [name for name in PEAK_TFLOPS if f" {name.upper()} " in f" {words} "]
    return PEAK_TFLOPS[max(known, key=len)] if known else None


def model_parameters(model: ModelConfig) -> int:
    """Return the parameters of the model; for gpt2 12·l·h² + 13·l·h + (V + s)·h + 2·h."""
    hidden, is_llama = model.hidden, model.family == "llama"
    tables = 1 if model.is_tied else 2
    behind_embedding = {"gpt2": model.sequence, "bloom": 2, "llama": 0}[model.family]
    vectors = tables * model.vocabulary + behind_embedding + (1 if is_llama else 2)  # the last: the norm at the end
    return vectors * hidden + model.layers * block_parameters(model)


def block_parameters(model: ModelConfig) -> int:
    hidden = model.hidden
    if model.family != "llama":
        return _block_matrices(model) + 13 * hidden
    biases = model.qkv_bias * (model.heads + 2 * model.group_count) * model.width_of_head
    head_norms = 2 * model.width_of_head * model.qk_norm
    return _block_matrices(model) + 2 * hidden + biases + head_norms


def step_flops(model: ModelConfig, *, batch: int, recompute: bool = False) -> float:
    """Return the operations of one step over `batch` samples, with the blocks forward twice if `recompute`.

    Per token 6 for every weight of a matrix (2 forward, 4 backward), and 12 x layers x heads x head width x sequence
    for scores and mixing (Narayanan et al. 2021, appendix; a causal mask is not subtracted, as there). For gpt2 and
    bloom this is their formula, 72·B·s·l·h²·(1 + s/(6h) + V/(12lh)); with `recompute` their eq. 2, 96 and V/(16lh).
    """
    attention = 12 * model.heads * model.width_of_head * model.sequence
    blocks = model.layers * (6 * _block_matrices(model) + attention)
    output = 6 * model.vocabulary * model.hidden
    return float(batch * model.sequence * (blocks * (4 / 3 if recompute else 1) + output))


def _block_matrices(model: ModelConfig) -> int:
    queries, pairs = model.heads * model.width_of_head, model.group_count * model.width_of_head
    feed_forward = 3 if model.family == "llama" else 2
    return model.hidden * (2 * queries + 2 * pairs + feed_forward * model.width_of_ffn)


def assumed_save_s(*, total_parameters: int, ranks: int) -> float:
    """Return the assumed seconds of a save before the first save: 14 bytes per parameter, 100 MB/s per rank, 2 s."""
    return 2.0 + 14 * total_parameters / ranks / 100e6
