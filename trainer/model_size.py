"""Parameters and floating-point operations of a model of any family, by the shapes of its matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsctl.trainer import flops

if TYPE_CHECKING:
    from opsctl.trainer.model_config import ModelConfig


def model_parameters(model: ModelConfig) -> int:
    """Return the parameters of the model; BLOOM has no positions, and has a norm after the embedding."""
    if model.family == "llama":
        tables = 1 if model.is_tied else 2
        table = model.vocabulary * model.hidden
        return tables * table + model.layers * block_parameters(model) + model.hidden
    bloom = model.family == "bloom"
    count = flops.parameters(
        layers=model.layers,
        hidden=model.hidden,
        sequence=0 if bloom else model.sequence,
        vocabulary=model.vocabulary,
    )
    return count + 2 * model.hidden * bloom


def block_parameters(model: ModelConfig) -> int:
    """Return the parameters of one block."""
    hidden = model.hidden
    if model.family != "llama":
        return 12 * hidden**2 + 13 * hidden
    biases = model.qkv_bias * (model.heads + 2 * model.group_count) * model.width_of_head
    head_norms = 2 * model.width_of_head * model.qk_norm
    return _block_matrices(model) + 2 * hidden + biases + head_norms


def step_flops(model: ModelConfig, *, batch: int, recompute: bool = False) -> float:
    """Return the operations of one step over `batch` samples, with the blocks forward twice if `recompute`.

    Per token 6 for every weight of a matrix (2 forward, 4 backward), and 12 x layers x heads x head width x sequence
    for scores and mixing (Narayanan et al. 2021, appendix; a causal mask is not subtracted, as there). For gpt2 and
    bloom this is their formula, flops.step_flops.
    """
    if model.family != "llama":
        return flops.step_flops(
            batch=batch,
            layers=model.layers,
            hidden=model.hidden,
            sequence=model.sequence,
            vocabulary=model.vocabulary,
            recompute=recompute,
        )
    attention = 12 * model.heads * model.width_of_head * model.sequence
    blocks = model.layers * (6 * _block_matrices(model) + attention)
    output = 6 * model.vocabulary * model.hidden
    return float(batch * model.sequence * (blocks * (4 / 3 if recompute else 1) + output))


def _block_matrices(model: ModelConfig) -> int:
    queries, pairs = model.heads * model.width_of_head, model.group_count * model.width_of_head
    return model.hidden * (2 * queries + 2 * pairs + 3 * model.width_of_ffn)
