"""The `config.json` of Hugging Face's transformers, from and to the table of the model."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from opsctl.trainer.bounded_files import read_bounded
from opsctl.trainer.checkpoint.transformers_keys import TABLES, find_figure, with_defaults
from opsctl.trainer.config_problems import join_problems
from opsctl.trainer.errors import Refused
from opsctl.trainer.model_config import ModelConfig

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
"""Files of weights: where each tensor is, or all tensors."""
_MAX_CONFIG_BYTES = 1 << 20
_LLAMA_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_FREE = ("dropout", "init_std", "sequence")
"""Keys of the model table that the weights do not determine."""
_STANDS_FOR = {
    "kv_heads": "group_count",
    "head_width": "width_of_head",
    "ffn": "width_of_ffn",
    "rope_theta": "theta",
    "norm_eps": "epsilon",
    "tied": "is_tied",
}
"""By key of a Llama: the property that is its value, or what stands for an absent one."""


def write_config(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of transformers. The tokenizer of the corpus is not part of a checkpoint.

    Raises Refused if transformers has no such model.
    """
    common: dict[str, Any] = {
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": config.is_tied,
        "bos_token_id": None,  # no password  # nosec B105
        "eos_token_id": None,  # no password  # nosec B105
    }
    table: dict[str, dict[str, Any]] = TABLES["config"][config.family]
    named = {theirs: getattr(config, ours) for ours, theirs in (table["names"] | table["derived"]).items()}
    dropouts = dict.fromkeys(table["dropout"], config.dropout)
    return common | table["fixed"] | named | dropouts | (_llama(config) if config.family == "llama" else {})


def _llama(config: ModelConfig) -> dict[str, Any]:
    if config.qk_norm and config.qkv_bias:
        raise Refused("transformers has no model with norms of heads and biases of queries, keys and values only")
    kind = "qwen3" if config.qk_norm else "llama"
    kind = "qwen2" if config.qkv_bias else kind
    if kind == "qwen2" and config.width_of_head * config.heads != config.hidden:
        raise Refused("transformers has no model with biases of queries, keys and values and a head_width of its own")
    return {
        "model_type": kind,
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "rope_scaling": _write_scaling(config),
    }


def _write_scaling(config: ModelConfig) -> dict[str, Any] | None:
    scaling = config.rope_scaling
    if scaling is None:
        return None
    common: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "linear":
        return common
    return common | {
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_sequence,
    }


def read_model(directory: Path, *, sequence: int | None = None) -> ModelConfig:
    """Return the table of the model in `directory`, with samples of `sequence` tokens (if absent, the model's longest).

    Raises OSError. Raises Refused with everything that this trainer cannot do.
    """
    fields = read_fields(directory)
    kind = str(fields.get("model_type"))
    known = ("gpt2", "bloom", *_LLAMA_TYPES)
    if kind not in known:
        raise Refused(f"{directory} is of type {kind}; known are {', '.join(known)}")
    fields = with_defaults(fields)
    try:
        if problems := list(_find_differences(fields, kind, sequence)):
            raise Refused(f"{directory}: {'; '.join(problems)}")
        table = _read_llama(fields) if kind in _LLAMA_TYPES else _read_sizes(fields, kind)
        return ModelConfig.model_validate(table | ({"sequence": sequence} if sequence else {}))
    except ValidationError as error:
        raise Refused(f"{directory}/config.json: {join_problems(ModelConfig, error)}") from error
    except KeyError as error:
        raise Refused(f"{directory}/config.json: {error.args[0]} is missing") from error
    except (TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
        raise Refused(f"{directory}/config.json: a value is of a wrong type ({error})") from error


def refuse_other_model(directory: Path, config: ModelConfig) -> None:
    """Raise Refused if `directory` has no weights of the model of `config`, whose vocabulary may be larger; OSError."""
    if not any((directory / name).exists() for name in (INDEX, SINGLE)):
        raise Refused(f"{directory} has neither {INDEX} nor {SINGLE}: only safetensors are read")
    refuse_other_config(directory, config)


def refuse_other_config(directory: Path, config: ModelConfig) -> None:
    """Raise Refused if the config.json of `directory` describes another model than `config`; OSError."""
    there = read_model(directory, sequence=config.sequence)
    both = [
        (key, _resolved(there, key), _resolved(config, key)) for key in ModelConfig.model_fields if key not in _FREE
    ]
    differences = [
        f"{key} is {theirs} there and {ours} here"
        for key, theirs, ours in both
        if theirs != ours and not (key == "vocabulary" and ours > theirs)
    ]
    if differences:
        raise Refused(f"{directory} is another model: {'; '.join(differences)} (opsctl checkpoint import prints it)")
    longest = read_model(directory).sequence if config.family == "gpt2" else config.sequence
    if config.sequence > longest:
        raise Refused(f"{directory} has {longest} learnt positions, fewer than sequence = {config.sequence}")


def _resolved(model: ModelConfig, key: str) -> Any:
    """Return the value of a key, or what stands for an absent one."""
    if model.family != "llama":
        return getattr(model, key)
    return getattr(model, _STANDS_FOR.get(key, key))


def read_fields(directory: Path) -> dict[str, Any]:
    """Return the `config.json` of `directory`. Raises OSError, Refused."""
    try:
        fields = json.loads(read_bounded(directory / "config.json", _MAX_CONFIG_BYTES, follow=True))
    except (ValueError, RecursionError) as error:
        raise Refused(f"{directory}/config.json is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise Refused(f"{directory}/config.json is no JSON object")
    return fields


def _find_differences(fields: Mapping[str, Any], kind: str, sequence: int | None) -> Iterator[str]:
    """Yield what the model has and this trainer has not."""
    if fields.get("quantization_config"):
        yield "its weights are quantised"
    for key, values in TABLES["only"].get(kind, TABLES["only"]["llama"]).items():
        if fields.get(key, values[0]) not in values:
            yield f"{key} is {fields[key]}, and this trainer has only {' or '.join(map(str, values))}"
    width = fields.get("n_inner")
    if kind == "gpt2" and width not in (None, 4 * int(fields.get("n_embd", 0))):
        yield f"n_inner is {width}, and this trainer has only 4 x n_embd"
    both = [_with_theta(fields, fields.get(key) or {}) for key in ("rope_scaling", "rope_parameters")]
    if fields.get("rope_scaling") and fields.get("rope_parameters") and both[0] != both[1]:
        yield "rope_scaling and rope_parameters differ, of which transformers obeys the first: remove one of them"
    stretch = _stretch_kind(_rope(fields))
    if stretch not in ("default", "linear", "llama3"):
        yield f"rotary positions of type {stretch} are not known; known are default, linear and llama3"
    window = fields.get("sliding_window") if fields.get("use_sliding_window", kind == "mistral") else None
    if window and (sequence or int(fields.get("max_position_embeddings", 0))) > window:
        yield f"its attention sees the last {window} tokens: choose a sequence up to {window}"


def _read_sizes(fields: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Return the keys that every family has; files of one family name sizes in different ways."""
    names = TABLES["config"][family]["names"] | {"vocabulary": "vocab_size"}
    found = {ours: fields.get(theirs, find_figure(fields, ours)) for ours, theirs in names.items()}
    if missing := next((theirs for ours, theirs in names.items() if found[ours] is None), None):
        raise KeyError(missing)
    return {"family": family, **found}


def _read_llama(fields: Mapping[str, Any]) -> dict[str, Any]:
    kind, rope, sizes = fields["model_type"], _rope(fields), _read_sizes(fields, "llama")
    table = sizes | {
        "kv_heads": fields.get("num_key_value_heads") or sizes["heads"],
        "head_width": fields.get("head_dim") or sizes["hidden"] // sizes["heads"],
        "ffn": fields["intermediate_size"],
        "rope_theta": float(rope.get("rope_theta") or fields.get("rope_theta") or 10_000.0),
        "norm_eps": fields["rms_norm_eps"],
        "qk_norm": kind == "qwen3",
        "qkv_bias": kind == "qwen2",
        "tied": bool(fields.get("tie_word_embeddings", False)),
    }
    scaling = _read_scaling(rope)
    return table | ({"rope_scaling": scaling} if scaling else {})


def _rope(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the rotary positions, which older files call `rope_scaling`."""
    return fields.get("rope_parameters") or fields.get("rope_scaling") or {}


def _with_theta(fields: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those that they leave to older keys and to the defaults."""
    given = {key: value for key, value in rope.items() if value is not None and key != "type"}
    return {"rope_theta": fields.get("rope_theta") or 10_000.0, **given, "rope_type": _stretch_kind(rope)}


def _stretch_kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def _read_scaling(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = _stretch_kind(rope)
    if kind == "default":
        return None
    names = {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_sequence",
    }
    numbers = {ours: rope[theirs] for theirs, ours in names.items() if kind == "llama3" or theirs == "factor"}
    floats = {key: value if key == "original_sequence" else float(value) for key, value in numbers.items()}
    return {"kind": kind, **floats}
