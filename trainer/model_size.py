"""Parameters and floating-point operations of a model by the shapes of its matrices; peaks of GPUs."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opsctl.trainer.model_config import ModelConfig

PEAK_TFLOPS: dict[str, float] = tomllib.loads(files("opsctl.trainer").joinpath("peak_tflops.toml").read_text())
"""Peaks in 10¹² operations per second, by a part of the driver's name."""


def peak_tflops(device: str) -> float | None:
    """Return the peak of a GPU by its driver's name, such as `NVIDIA A100-SXM4-80GB`; None if unknown."""
    words = device.replace("-", " ").upper()
    known = [name for name in PEAK_TFLOPS if f" {name.upper()} " in f" {words} "]
    return PEAK_TFLOPS[max(known, key=len)] if known else None


class Parameter(NamedTuple):
    shape: tuple[int, ...]
    axis: int | None = None
    """The axis that tensor ranks cut; None if every rank holds all."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def block_matrices(model: ModelConfig) -> dict[str, Parameter]:
    """Return the matrices of a block by name, in the order of their seeds."""
    hidden, ffn = model.hidden, model.width_of_ffn
    queries, pairs = model.heads * model.width_of_head, model.group_count * model.width_of_head
    return {
        "qkv": Parameter((queries + 2 * pairs, hidden), axis=0),
        "out": Parameter((hidden, queries), axis=1),
        **dict.fromkeys(["gate"] * model.kind.is_gated + ["up"], Parameter((ffn, hidden), axis=0)),
        "down": Parameter((hidden, ffn), axis=1),
    }


def layer_parameters(model: ModelConfig, number: int) -> dict[str, Parameter]:
    """Return the parameters of layer `number` by name: 0 is the embedding, 2 the first block (see `architecture`)."""
    kind, table = model.kind, Parameter((model.vocabulary, model.hidden), axis=0)
    norm = dict.fromkeys(("weight", "bias") if kind.norm == "layer" else ("weight",), Parameter((model.hidden,)))
    if 2 <= number < model.layers + 2:
        return _block_parameters(model, norm)
    is_learnt = kind.positions == "learnt"
    behind_embedding = {"weight": Parameter((model.sequence, model.hidden))} if is_learnt else norm
    return {
        0: {"weight": table},
        1: behind_embedding if is_learnt or kind.has_embedding_norm else {},
        model.layers + 2: norm,
        model.layers + 3: {} if model.is_tied else {"projection.weight": table},
    }[number]


def _block_parameters(model: ModelConfig, norm: Mapping[str, Parameter]) -> dict[str, Parameter]:
    found = {f"{name}.{kind}": norm[kind] for name, kind in product(model.kind.block_norms, norm)}
    for name, heads in ("q_norm", model.heads), ("k_norm", model.group_count):
        is_whole = model.qk_norms == "all"
        if model.qk_norms:
            width = model.width_of_head * (heads if is_whole else 1)
            found[f"{name}.weight"] = Parameter((width,), axis=0 if is_whole else None)
    for name, matrix in block_matrices(model).items():
        found[f"{name}.weight"] = matrix
        if model.has_bias(name):
            found[f"{name}.bias"] = Parameter(matrix.shape[:1], axis=None if matrix.axis else 0)
    return found


def model_parameters(model: ModelConfig) -> int:
    """Return the parameters of the model; for gpt2 12·l·h² + 13·l·h + (V + s)·h + 2·h."""
    ends = (layer_parameters(model, number) for number in (0, 1, model.layers + 2, model.layers + 3))
    return sum(map(_count, ends)) + model.layers * block_parameters(model)


def block_parameters(model: ModelConfig) -> int:
    return _count(layer_parameters(model, 2))


def _count(parameters: Mapping[str, Parameter]) -> int:
    return sum(one.size for one in parameters.values())


def step_flops(model: ModelConfig, *, batch: int, recompute: bool = False) -> float:
    """Return the operations of one step over `batch` samples, with the blocks forward twice if `recompute`.

    Per token 6 for every weight of a matrix (2 forward, 4 backward), and 12 x layers x heads x head width x sequence
    for scores and mixing (Narayanan et al. 2021, appendix; a causal mask is not subtracted, as there). For gpt2 and
    bloom this is their formula, 72·B·s·l·h²·(1 + s/(6h) + V/(12lh)); with `recompute` their eq. 2, 96 and V/(16lh).
    """
    attention = 12 * model.heads * model.width_of_head * model.sequence
    matrices = sum(matrix.size for matrix in block_matrices(model).values())
    blocks = model.layers * (6 * matrices + attention)
    output = 6 * model.vocabulary * model.hidden
    return float(batch * model.sequence * (blocks * (4 / 3 if recompute else 1) + output))


def assumed_save_s(*, total_parameters: int, ranks: int) -> float:
    """Return the assumed seconds of a save before the first save: 14 bytes per parameter, 100 MB/s per rank, 2 s."""
    return 2.0 + 14 * total_parameters / ranks / 100e6
