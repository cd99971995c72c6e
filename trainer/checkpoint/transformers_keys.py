"""What transformers calls sizes and tensors, and what it takes for absent ones, from transformers.toml.

Read by the trainer, which imports some models, and by the planner, which plans any. Standard library only.
"""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

MAX_FIGURE = 10**15
TABLES: dict[str, dict[str, Any]] = tomllib.loads(
    files("opsctl.trainer.checkpoint").joinpath("transformers.toml").read_text()
)
ALIASES: dict[str, list[str]] = TABLES["aliases"]


def with_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json with those that transformers leaves out."""
    defaults: dict[str, Any] = TABLES["defaults"].get(str(fields.get("model_type")), {})
    return defaults | dict(fields)


def find_figure(fields: Mapping[str, Any], name: str) -> int | None:
    """Return a figure by its name in ALIASES, whatever the model calls it; None if absent or no size."""
    values = (fields.get(alias) for alias in ALIASES[name])
    return next((value for value in values if type(value) is int and 0 < value < MAX_FIGURE), None)
