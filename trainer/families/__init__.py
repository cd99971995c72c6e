"""The dense families of models that the trainer knows, one file each; names of figures of any model of transformers.

A file names what its `base` does not, llama.toml the defaults of all; the value "" removes a key of the base. Standard
library only: planner and settings read it.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

_DIRECTORY = files(__name__)
MAX_FIGURE = 10**15
ALIASES: dict[str, list[str]] = tomllib.loads(
    files("opsctl.trainer.checkpoint").joinpath("transformers.toml").read_text()
)["aliases"]
NAMES = sorted(path.name.removesuffix(".toml") for path in _DIRECTORY.iterdir() if path.name.endswith(".toml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """A family: what its layers compute, and what transformers calls its settings and tensors (see llama.toml)."""

    name: str
    type: str
    """`model_type` in transformers."""
    architecture: str
    norm: str
    norms: str
    positions: str
    activation: str
    is_gated: bool
    biases: list[str]
    qk_norm: str
    has_embedding_norm: bool
    scales_embedding: bool
    is_tied: bool
    theta: float
    local_theta: float
    full_every: int
    unrotated_every: int
    buffers: str
    keys: list[str]
    config: Mapping[str, Any]
    switches: Mapping[str, list[str]]
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any]
    only: Mapping[str, list[Any]]
    qkv: str
    is_transposed: bool
    layers: Mapping[str, str]
    tensors: Mapping[str, str]

    @property
    def block_norms(self) -> list[str]:
        """Names of a block's norms: 1 and 2 stand before attention and feed-forward, 3 and 4 behind them."""
        before, after = ["norm1", "norm2"], ["norm3", "norm4"]
        return {"before": before, "after": after, "around": before + after}[self.norms]


@functools.cache
def load(name: str) -> ModelFamily:
    """Return the family of that name. Raises KeyError."""
    if name not in NAMES:
        raise KeyError(name)
    table = _read(name)
    model = _read("llama")["model"] | table.pop("model")
    return ModelFamily(**{"name": name, "type": name, **model, **table.pop("layout"), **table})


def _read(name: str) -> dict[str, Any]:
    table = tomllib.loads(_DIRECTORY.joinpath(f"{name}.toml").read_text())
    if "base" not in table:
        return table
    base = _read(table.pop("base"))
    base.pop("type", None)
    tables = {key for key, value in table.items() if isinstance(value, dict)}
    merged = {key: {k: v for k, v in (base[key] | table[key]).items() if v != ""} for key in tables}
    return base | table | merged


def of_type(model_type: str) -> ModelFamily | None:
    """Return the family of a `model_type` of transformers."""
    return next((family for family in map(load, NAMES) if family.type == model_type), None)


def with_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json with those that transformers leaves out."""
    family = of_type(str(fields.get("model_type")))
    return {**(family.defaults if family else {}), **fields}


def find_figure(fields: Mapping[str, Any], name: str) -> int | None:
    """Return a figure by its name in ALIASES, whatever the model calls it; None if absent or no size."""
    values = (fields.get(alias) for alias in ALIASES[name])
    return next((value for value in values if type(value) is int and 0 < value < MAX_FIGURE), None)
