"""Export of a checkpoint to Hugging Face's `transformers`: GPT-2 or BLOOM, one file of weights per layer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opsctl.trainer.atomic_files import write_atomic
from opsctl.trainer.checkpoint.rewrite import new_directory, read_verified
from opsctl.trainer.checkpoint.weights import Weights
from opsctl.trainer.config import ModelConfig

_GPT2 = {
    "norm1": "ln_1",
    "qkv": "attn.c_attn",
    "out": "attn.c_proj",
    "norm2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
_BLOOM = {
    "norm1": "input_layernorm",
    "qkv": "self_attention.query_key_value",
    "out": "self_attention.dense",
    "norm2": "post_attention_layernorm",
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
}


def export(checkpoint: Path, target: Path, *, trust: bool = False) -> Path:
    """Write the weights of `checkpoint` into the directory `target`, completely or not at all; return `target`.

    Raises Refused, OSError.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - of the `export` extra

    saved = read_verified(checkpoint)
    weights = Weights(checkpoint, saved, trust=trust)
    with new_directory(target) as part:
        count = len(weights.layers)
        where: dict[str, str] = {}
        for number in weights.layers:
            tensors = {name: tensor.contiguous() for name, tensor in _renamed(weights, number)}
            file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
            save_file(tensors, part / file, metadata={"format": "pt"})
            where |= dict.fromkeys(tensors, file)
        size = sum(path.stat().st_size for path in part.iterdir())
        index = {"metadata": {"total_size": size}, "weight_map": where}
        write_atomic(part / "model.safetensors.index.json", json.dumps(index, indent=1))
        config = _config(weights.config) | {"dtype": "bfloat16" if saved.precision == "bf16" else "float32"}
        write_atomic(part / "config.json", json.dumps(config, indent=1) + "\n")
    return target


def _renamed(weights: Weights, number: int) -> Iterator[tuple[str, Tensor]]:
    config, layer = weights.config, weights.layer(number)
    bloom = config.family == "bloom"
    if number == 0:
        yield f"transformer.{'word_embeddings' if bloom else 'wte'}.weight", layer["weight"]
    elif number == 1:
        name = "word_embeddings_layernorm" if bloom else "wpe"
        yield from ((f"transformer.{name}.{key}", tensor) for key, tensor in layer.items())
    elif number == config.layers + 2:
        yield from ((f"transformer.ln_f.{key}", tensor) for key, tensor in layer.items())
    else:
        for key, tensor in layer.items():
            part, _, kind = key.partition(".")
            name = f"transformer.h.{number - 2}.{(_BLOOM if bloom else _GPT2)[part]}.{kind}"
            yield name, tensor if bloom else _as_gpt2(part, tensor, config)


def _as_gpt2(part: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """Convert a tensor to GPT-2's format: rows of `qkv` are [q k v, head, …]; matrices are transposed."""
    if part == "qkv":
        rows = tensor.unflatten(0, (config.heads, 3, config.hidden // config.heads))
        tensor = rows.transpose(0, 1).flatten(0, 2)
    return tensor.t() if tensor.ndim == 2 else tensor


def _config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of transformers. The tokenizer of the corpus is not part of a checkpoint."""
    common = {
        "vocab_size": config.vocabulary,
        "n_layer": config.layers,
        "n_head": config.heads,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": None,  # no password  # nosec B105
        "eos_token_id": None,  # no password  # nosec B105
    }
    if config.family == "bloom":
        return common | {
            "model_type": "bloom",
            "architectures": ["BloomForCausalLM"],
            "hidden_size": config.hidden,
            "seq_length": config.sequence,
            "attention_dropout": config.dropout,
            "hidden_dropout": config.dropout,
            "apply_residual_connection_post_layernorm": False,
        }
    return common | {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": config.hidden,
        "n_positions": config.sequence,
        "activation_function": "gelu_new",
        "attn_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
    }


def compare(checkpoint: Path, exported: Path, *, samples: int = 2, trust: bool = False) -> float:
    """Return the largest difference of fp32 logits between this trainer and transformers, over random tokens."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - of the `export` extra

    from opsctl.trainer.checkpoint.single_process import logits  # noqa: PLC0415 - imports DeepSpeed, which export does not need

    weights = Weights(checkpoint, read_verified(checkpoint), trust=trust)
    generator = torch.Generator().manual_seed(0)
    shape = (samples, weights.config.sequence)
    tokens = torch.randint(weights.config.vocabulary, shape, generator=generator)
    theirs = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)  # a local directory  # nosec B615
    theirs.train(mode=False)
    with torch.no_grad():
        return float((theirs(tokens).logits - logits(weights, tokens)).abs().max())
