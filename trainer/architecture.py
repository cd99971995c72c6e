"""The model of a config as a list of layers, which DeepSpeed cuts into pipeline stages.

Activations between layers are [micro_batch, tokens that a rank holds, hidden].
"""

from collections.abc import Iterator
from typing import Any

from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import nn

from opsctl.trainer.gpt import Block, EmbeddingNorm, FinalNorm, PositionEmbedding, TokenEmbedding, logits
from opsctl.trainer.llama import EmbeddingDropout, LlamaBlock, OutputProjection, RmsNorm
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.tensor_parallel import Slice

BLOCKS = ("Block", "LlamaBlock")
"""Names of the classes whose activations can be recomputed."""


def layers(config: ModelConfig, *, seed: int, part: Slice) -> list[Any]:
    """Return DeepSpeed's specifications of the layers, first to last: embedding, positions, blocks, norm, output."""

    def seed_of(layer: int) -> int:
        return seed * 1_000_003 + layer * 8  # a layer uses up to five seeds

    tied = {"tied_weight_attr": "weight"}
    is_llama, last = config.family == "llama", config.layers + 3
    behind_embedding = {
        "gpt2": LayerSpec(PositionEmbedding, config, seed_of(1), part),
        "bloom": LayerSpec(EmbeddingNorm, config),
        "llama": LayerSpec(EmbeddingDropout, config),
    }[config.family]
    block = LlamaBlock if is_llama else Block
    first = (TokenEmbedding, config, seed_of(0), part)
    return [
        TiedLayerSpec("embedding", *first, **tied) if config.is_tied else LayerSpec(*first),
        behind_embedding,
        *(LayerSpec(block, config, seed_of(2 + number), part) for number in range(config.layers)),
        LayerSpec(RmsNorm, config.hidden, config.epsilon) if is_llama else LayerSpec(FinalNorm, config.hidden),
        TiedLayerSpec("embedding", *first, forward_fn=logits, **tied)
        if config.is_tied
        else LayerSpec(OutputProjection, config, seed_of(last), part),
    ]


def stored_layers(config: ModelConfig) -> int:
    """Return the number of layers with weights of their own: a tied output has none."""
    return config.layers + (3 if config.is_tied else 4)


def universal_info(config: ModelConfig) -> dict[str, Any]:
    """Return how to merge the slices of parameters, in the format of DeepSpeed's universal checkpoints.

    Parameters without a pattern are merged along their first axis: embedding, output, and weights and biases of `qkv`,
    `gate` and `up`.
    """
    replicated = {
        "gpt2": [r"1\.weight$", r"\d+\.norm[12]\.", r"\d+\.(out|down)\.bias$", rf"{config.layers + 2}\.(weight|bias)$"],
        "bloom": [
            r"1\.(weight|bias)$",
            r"\d+\.norm[12]\.",
            r"\d+\.(out|down)\.bias$",
            rf"{config.layers + 2}\.(weight|bias)$",
        ],
        "llama": [r"\d+\.norm[12]\.", *[r"\d+\.[qk]_norm\."] * config.qk_norm, rf"{config.layers + 2}\.weight$"],
    }[config.family]
    return {
        "universal_checkpoint_version": 0.2,
        "tp_replicated_parameter_patterns": replicated,
        "parameter_with_row_parallelism_patterns": [r"\d+\.(out|down)\.weight$"],
    }


def parameter_groups(module: nn.Module, *, weight_decay: float) -> Iterator[dict[str, Any]]:
    """Yield the matrices with weight decay, then the vectors (biases and norms) without."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2]
    yield {"params": matrices, "weight_decay": weight_decay}
    if vectors:
        yield {"params": vectors, "weight_decay": 0.0}
