"""The names of sizes in the `config.json` of transformers, and what transformers takes for absent ones.

Read by the trainer, which imports some models, and by the planner, which plans any. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_FIGURE = 10**15
ALIASES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_columns": ("head_dim",),
    "ffn": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "ffn_hidden"),
    "vocabulary": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "active_experts": ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"),
    "sequence": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len"),
}
"""Names of one figure in the configurations of different models."""
QWEN = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "use_sliding_window": False,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 1024},
    "bloom": {"seq_length": 2048},
    "llama": {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048},
    "mistral": {
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "qwen2": QWEN,
    "qwen3": {**QWEN, "head_dim": 128},
}
"""What transformers takes for an absent key. Of the sizes of matrices, only those of the heads may be absent."""


def with_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json with those that transformers leaves out."""
    return DEFAULTS.get(str(fields.get("model_type")), {}) | dict(fields)


def find_figure(fields: Mapping[str, Any], name: str) -> int | None:
    """Return a figure by its name in ALIASES, whatever the model calls it; None if absent or no size."""
    values = (fields.get(alias) for alias in ALIASES[name])
    return next((value for value in values if type(value) is int and 0 < value < MAX_FIGURE), None)
