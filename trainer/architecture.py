"""The model of a config as a list of layers, which DeepSpeed cuts into pipeline stages.

Activations between layers are [micro_batch, tokens that a rank holds, hidden].
"""

import re
from collections.abc import Iterator
from typing import Any

from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn

from opsctl.trainer import gpt
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.model_size import layer_parameters
from opsctl.trainer.tensor_parallel import Slice


def layers(config: ModelConfig, *, seed: int, part: Slice) -> list[Any]:
    """Return DeepSpeed's specifications of the layers, first to last: embedding, positions, blocks, norm, output."""

    def seed_of(layer: int) -> int:
        return seed * 1_000_003 + layer * 8  # a layer uses up to five seeds

    tied, last = {"tied_weight_attr": "weight"}, config.layers + 3
    first = (gpt.TokenEmbedding, config, seed_of(0), part)
    return [
        TiedLayerSpec("embedding", *first, **tied) if config.is_tied else LayerSpec(*first),
        _behind_embedding(config, seed_of(1), part),
        *(LayerSpec(gpt.Block, config, number, seed_of(2 + number), part) for number in range(config.layers)),
        LayerSpec(gpt.NORMS[config.kind.norm], config),
        TiedLayerSpec("embedding", *first, forward_fn=gpt.logits, **tied)
        if config.is_tied
        else LayerSpec(gpt.OutputProjection, config, seed_of(last), part),
    ]


def _behind_embedding(config: ModelConfig, seed: int, part: Slice) -> Any:
    if config.kind.positions == "learnt":
        return LayerSpec(gpt.PositionEmbedding, config, seed, part)
    return LayerSpec(gpt.EmbeddingNorm if config.kind.has_embedding_norm else gpt.EmbeddingDropout, config)


def universal_info(config: ModelConfig) -> dict[str, Any]:
    """Return how to merge the slices of parameters, in the format of DeepSpeed's universal checkpoints.

    Parameters without a pattern are merged along their first axis.
    """
    patterns: dict[int | None, list[str]] = {None: [], 0: [], 1: []}
    for number, place in (0, "0"), (1, "1"), (2, r"\d+"), (config.layers + 2, f"{config.layers + 2}"):
        for name, parameter in layer_parameters(config, number).items():
            patterns[parameter.axis].append(rf"{place}\.{re.escape(name)}$")
    return {
        "universal_checkpoint_version": 0.2,
        "tp_replicated_parameter_patterns": patterns[None],
        "parameter_with_row_parallelism_patterns": patterns[1],
    }


def parameter_groups(module: nn.Module, *, weight_decay: float) -> Iterator[dict[str, Any]]:
    """Yield the matrices with weight decay, then the vectors (biases and norms) without."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2]
    yield {"params": matrices, "weight_decay": weight_decay}
    if vectors:
        yield {"params": vectors, "weight_decay": 0.0}
