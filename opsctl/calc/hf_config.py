"""The shape of a model from the config.json of Hugging Face transformers."""

from collections.abc import Mapping
from typing import Any

from opsctl.base.errors import InputError
from opsctl.calc.argument_checks import MAX_FIGURE
from opsctl.calc.gpt_size import LatentAttention, ModelShape
from opsctl.trainer.families import ALIASES, find_figure, with_defaults

GATED = frozenset({"silu", "swish", "swiglu", "geglu", "gelu_pytorch_tanh", "reglu"})
PLAIN = ("gpt2", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "phi", "mpt", "starcoder2", "nemotron")
"""Model types without a gated feed-forward part, whatever their activation is called."""
LEARNT_POSITIONS = ("gpt2", "gpt_bigcode", "opt", "gpt_neo")
MAX_SEQUENCE = 8192
"""Models state the longest sequence that they read; most pretraining uses at most this."""


def read_config(data: Mapping[str, Any], *, sequence: int | None = None) -> tuple[ModelShape, tuple[str, ...]]:
    """Return the shape of a config.json and what was assumed to get it.

    Raises InputError if a figure without which there is no shape is missing.
    """
    text = data.get("text_config")
    config = with_defaults({**data, **text} if isinstance(text, dict) else data)
    figures = {name: value for name in ALIASES if (value := find_figure(config, name)) is not None}
    missing = [ALIASES[name][0] for name in ("layers", "hidden", "heads", "vocabulary") if name not in figures]
    if missing:
        raise InputError(
            f"config.json: {', '.join(missing)} not there", hint="give the config.json of a decoder, or --layers …"
        )
    kind = str(config.get("model_type", ""))
    activation = config.get("hidden_act") or config.get("hidden_activation") or config.get("activation_function")
    is_gated = kind not in PLAIN and str(activation) in GATED
    assumed = []
    longest = figures.pop("sequence", None)
    if sequence is None:
        sequence = min(longest or 2048, MAX_SEQUENCE)
        assumed.append(f"sequence {sequence} (the model allows {longest or 'any'})")
    options: dict[str, Any] = {
        **figures,
        **_expert_options(config, figures),
        **_window_options(config),
        "sequence": sequence,
        "gated": is_gated,
        "biases": not is_gated,
        "positions": kind in LEARNT_POSITIONS,
        "tied": bool(config.get("tie_word_embeddings", kind in (*PLAIN, "gemma", "gemma2", "gemma3_text"))),
    }
    return ModelShape(**options), tuple(assumed)


def _whole(config: Mapping[str, Any], name: str, default: int = 0) -> int:
    """Return an optional figure; `default` if absent, null or 0. Raises InputError for any other value."""
    value = config.get(name)
    if not value:
        return default
    if type(value) is not int or not 0 < value < MAX_FIGURE:
        raise InputError(f"config.json: {name} is {value!r:.60}, needs to be a whole number above 0")
    return value


def _expert_options(config: Mapping[str, Any], figures: Mapping[str, int]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if "experts" in figures:
        width = _whole(config, "moe_intermediate_size", figures.get("ffn", 0))
        options["ffn"] = width or None
        options["dense_ffn"] = figures.get("ffn", 0)
        options["dense_layers"] = _whole(config, "first_k_dense_replace")
        shared = _whole(config, "shared_expert_intermediate_size")
        options["shared_ffn"] = shared or _whole(config, "n_shared_experts") * width
    if rank := _whole(config, "kv_lora_rank"):
        options["head_columns"] = None
        options["latent"] = LatentAttention(
            query_rank=_whole(config, "q_lora_rank"),
            key_value_rank=rank,
            rope_size=_whole(config, "qk_rope_head_dim", 64),
            plain_size=_whole(config, "qk_nope_head_dim", 128),
            value_size=_whole(config, "v_head_dim", 128),
        )
    return options


def _window_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sliding window and the share of the layers that have one."""
    if config.get("use_sliding_window") is False:
        return {}
    window = _whole(config, "sliding_window")
    if not window:
        return {}
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return {"window": window, "windowed": sum(kind == "sliding_attention" for kind in kinds) / len(kinds)}
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:  # such as LLLG: three layers with a window, one without
        return {"window": window, "windowed": pattern.count("L") / len(pattern)}
    period = 2 if config.get("model_type") == "gemma2" else _whole(config, "sliding_window_pattern")
    return {"window": window, "windowed": (period - 1) / period if period else 1.0}
