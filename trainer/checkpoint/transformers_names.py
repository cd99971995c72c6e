"""Tensors of a layer under the names and in the arrangement of Hugging Face's transformers, in both directions."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from opsctl.trainer.checkpoint.transformers_files import tensor_name
from opsctl.trainer.model_config import ModelConfig

Layer = dict[str, Tensor]
"""The whole parameters of one layer of the trainer, by name."""


def to_transformers(config: ModelConfig, number: int, layer: Layer) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of layer `number` by their names in transformers."""
    for name, tensor in layer.items():
        part, _, kind = name.rpartition(".")
        theirs = tensor_name(config, number, name)
        if part == "qkv" and config.kind.qkv == "apart":
            yield from zip(map(theirs.format, "qkv"), _split_groups(config, tensor), strict=True)
        elif part != "up" or not _stacks_gate(config):
            yield theirs, _arranged(config, part, tensor, layer.get(f"up.{kind}"))


def from_transformers(config: ModelConfig, number: int, names: Iterator[str], read: Callable[[str], Tensor]) -> Layer:
    """Return the parameters `names` of layer `number`; `read` returns a tensor by its name in transformers."""
    layer = {}
    for name in names:
        part, _, _ = name.rpartition(".")
        theirs = tensor_name(config, number, name)
        if part == "qkv" and config.kind.qkv == "apart":
            layer[name] = _join_groups(config, [read(theirs.format(letter)) for letter in "qkv"])
        else:
            layer[name] = _restored(config, part, read(theirs))
    if config.kind.positions == "learnt" and number == 1:
        layer["weight"] = layer["weight"][: config.sequence]  # a shorter sequence uses the first positions
    return layer


def _stacks_gate(config: ModelConfig) -> bool:
    """Return whether files have the gate and the other half of the feed-forward in one tensor."""
    return config.kind.tensors.get("gate") == config.kind.tensors["up"]


def _arranged(config: ModelConfig, part: str, tensor: Tensor, up: Tensor | None) -> Tensor:
    """Return a tensor as files have it."""
    if part == "qkv" and config.kind.qkv == "stacked":
        tensor = torch.cat(_split_groups(config, tensor))
    if part == "gate" and up is not None and _stacks_gate(config):
        tensor = torch.cat((tensor, up))
    return tensor.t() if part and config.kind.is_transposed and tensor.ndim == 2 else tensor


def _restored(config: ModelConfig, part: str, tensor: Tensor) -> Tensor:
    """Undo `_arranged`."""
    if part and config.kind.is_transposed and tensor.ndim == 2:
        tensor = tensor.t()
    if part == "qkv" and config.kind.qkv == "stacked":
        groups = config.group_count
        sizes = [count * config.width_of_head for count in (config.heads, groups, groups)]
        tensor = _join_groups(config, tensor.split(sizes))
    if part in ("gate", "up") and _stacks_gate(config):
        tensor = tensor.chunk(2)[part == "up"]
    return tensor


def _split_groups(config: ModelConfig, rows: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of queries, keys and values, from rows [group, its queries, key, value, width]."""
    queries = config.heads // config.group_count
    grouped = rows.unflatten(0, (config.group_count, queries + 2, config.width_of_head))
    return tuple(part.flatten(0, 2) for part in grouped.split((queries, 1, 1), dim=1))


def _join_groups(config: ModelConfig, parts: Sequence[Tensor]) -> Tensor:
    """Undo `_split_groups`."""
    grouped = [part.unflatten(0, (config.group_count, -1, config.width_of_head)) for part in parts]
    return torch.cat(grouped, dim=1).flatten(0, 2)
