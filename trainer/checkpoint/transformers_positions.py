"""Rotary positions and windows in the `config.json` of Hugging Face's transformers, in both directions."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.trainer.families import ModelFamily
from opsctl.trainer.model_config import ModelConfig, RopeScaling

_FULL, _SLIDING = "full_attention", "sliding_attention"
_STRETCHES = ("default", "linear", "llama3", "yarn")
_NUMBERS = {
    "linear": {"factor": "factor"},
    "llama3": {"factor": "factor", "low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor"},
    "yarn": {"factor": "factor", "beta_slow": "low_freq_factor", "beta_fast": "high_freq_factor"},
}
"""By kind of stretch: keys of the model table by those of transformers."""
_YARN = {"beta_slow": 1.0, "beta_fast": 32.0}

Fields = Mapping[str, Any]


def read(fields: Fields, family: ModelFamily) -> dict[str, Any]:
    """Return the keys of the model table. Raises KeyError, TypeError, ValueError for a field that is absent or odd."""
    if family.positions != "rotary":
        return {}
    rope = _rope(fields, family, _FULL)
    table: dict[str, Any] = {"rope_theta": float(rope["rope_theta"])}
    if family.local_theta:
        table["rope_local_theta"] = float(_rope(fields, family, _SLIDING)["rope_theta"])
    if rope["rope_type"] != "default":
        table["rope_scaling"] = _read_scaling(rope, fields)
    if "unrotated" in family.keys:
        table["unrotated"] = _blocks_without_rope(fields)
    if window := _window(fields, family):
        table["window"] = window
        if "full" in family.keys:
            table["full"] = _blocks_without_window(fields, family)
    return table


def _rope(fields: Fields, family: ModelFamily, layers: str, rope: Fields | None = None) -> dict[str, Any]:
    """Return the settings of the rotary positions as transformers takes them, by default those that it obeys.

    That is `rope_scaling`, an older name, if both are there.
    """
    rope = rope or fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    is_local = layers == _SLIDING and bool(family.local_theta)
    if _FULL in rope or _SLIDING in rope:
        rope = rope.get(layers) or {}
    elif is_local:
        rope = {}
    key, default = ("rope_local_base_freq", family.local_theta) if is_local else ("rope_theta", family.theta)
    given = {name: value for name, value in rope.items() if value is not None and name != "type"}
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    return {"rope_theta": fields.get(key) or default} | given | {"rope_type": kind}


def find_differences(fields: Fields, family: ModelFamily) -> Iterator[str]:
    """Yield what the positions and windows of the model have and this trainer has not."""
    if family.positions != "rotary":
        return
    yield from _foreign_rope(fields, family)
    if "window" not in family.config or not _window(fields, family):
        return
    kinds, count = fields.get("layer_types"), fields[family.config["layers"]]
    if kinds and not (len(kinds) == count and {*kinds} <= {_FULL, _SLIDING}):
        yield f"layer_types is not {_FULL} or {_SLIDING} for each of {count} layers"
    elif "full" not in family.keys and _blocks_without_window(fields, family):
        yield "layer_types has layers without a window, and this trainer has only windows in all layers"


def _foreign_rope(fields: Fields, family: ModelFamily) -> Iterator[str]:
    full, local = (_rope(fields, family, layers) for layers in (_FULL, _SLIDING))
    other = fields.get("rope_parameters")
    if [full, local] != [_rope(fields, family, layers, other) for layers in (_FULL, _SLIDING)]:
        yield "rope_scaling and rope_parameters differ, of which transformers obeys the first: remove one of them"
    known = _STRETCHES if "rope_scaling" in family.keys else ("default",)
    if full["rope_type"] not in known:
        yield f"rotary positions of type {full['rope_type']} are not known; known are {', '.join(known)}"
    elif full["rope_type"] == "yarn" and full.get("truncate", True) is not True:
        yield "truncate of yarn is false, and this trainer has only true"
    if family.local_theta and local["rope_type"] != "default":
        yield f"rotary positions of layers with a window are of type {local['rope_type']}, not default"
    share = full.get("partial_rotary_factor", fields.get("partial_rotary_factor"))
    if share not in (None, 1):
        yield f"partial_rotary_factor is {share}, and this trainer has only 1.0"


def _read_scaling(rope: Fields, fields: Fields) -> dict[str, Any]:
    kind = rope["rope_type"]
    rope = {**(_YARN if kind == "yarn" else {}), **rope}
    table: dict[str, Any] = {ours: float(rope[theirs]) for theirs, ours in _NUMBERS[kind].items()}
    if kind != "linear":
        original = "original_max_position_embeddings"
        table["original_sequence"] = fields.get(original) or rope.get(original) or fields["max_position_embeddings"]
    if kind == "yarn":
        factor, scales = rope.get("attention_factor"), [rope.get(key) or 0.0 for key in ("mscale", "mscale_all_dim")]
        if factor is None and all(scales):  # as DeepSeek has it
            first, second = (0.1 * scale * math.log(max(1.0, table["factor"])) + 1.0 for scale in scales)
            factor = first / second
        table["attention_factor"] = factor
    return {"kind": kind, **table}


def _window(fields: Fields, family: ModelFamily) -> int | None:
    if "window" not in family.config or not fields.get("use_sliding_window", True):
        return None
    window: int | None = fields.get(family.config["window"])
    return None if len(_blocks_without_window(fields, family)) == fields[family.config["layers"]] else window


def _blocks_without_window(fields: Fields, family: ModelFamily) -> tuple[int, ...]:
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        return tuple(block for block, kind in enumerate(kinds) if kind != _SLIDING)
    first, every = fields.get("max_window_layers", 0), fields.get("sliding_window_pattern", family.full_every)
    blocks = range(int(fields[family.config["layers"]]))
    return tuple(block for block in blocks if block < first or (every > 0 and (block + 1) % every == 0))


def _blocks_without_rope(fields: Fields) -> tuple[int, ...]:
    every, count = fields["no_rope_layer_interval"], int(fields["num_hidden_layers"])
    rotating = fields.get("no_rope_layers") or [(block + 1) % every for block in range(count)]
    return tuple(block for block, rotates in enumerate(rotating) if not rotates)


def write(family: ModelFamily, config: ModelConfig) -> dict[str, Any]:
    """Return the fields of config.json."""
    if family.positions != "rotary":
        return {}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.theta}
    if config.rope_scaling:
        rope |= _write_scaling(config.rope_scaling)
    local = {"rope_type": "default", "rope_theta": config.local_theta}
    fields: dict[str, Any] = {"rope_parameters": {_FULL: rope, _SLIDING: local} if family.local_theta else rope}
    if not family.local_theta:  # older releases read these
        fields |= {"rope_theta": config.theta, "rope_scaling": rope if config.rope_scaling else None}
    windows = [config.window_of(block) for block in range(config.layers)]
    if "window" in family.config:
        fields[family.config["window"]] = config.window
        if "full" in family.keys:
            fields["layer_types"] = [_SLIDING if window else _FULL for window in windows]
        if "use_sliding_window" in family.defaults:
            fields |= {"use_sliding_window": any(windows), "max_window_layers": windows.count(None)}
    if "unrotated" in family.keys:
        fields["no_rope_layers"] = [int(config.rotates(block)) for block in range(config.layers)]
    return fields


def _write_scaling(scaling: RopeScaling) -> dict[str, Any]:
    numbers = {theirs: getattr(scaling, ours) for theirs, ours in _NUMBERS[scaling.kind].items()}
    if scaling.kind != "linear":
        numbers["original_max_position_embeddings"] = scaling.original_sequence
    if scaling.attention_factor is not None:
        numbers["attention_factor"] = scaling.attention_factor
    return {"rope_type": scaling.kind, **numbers}
