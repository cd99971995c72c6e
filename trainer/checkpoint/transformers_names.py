"""Tensors of a layer under the names and in the arrangement of Hugging Face's transformers, in both directions."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from opsctl.trainer.checkpoint.transformers_keys import TABLES
from opsctl.trainer.model_config import ModelConfig

Layer = dict[str, Tensor]
"""The whole parameters of one layer of the trainer, by name."""


def to_transformers(config: ModelConfig, number: int, layer: Layer) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of layer `number` by their names in transformers."""
    for name, tensor in layer.items():
        part = name.rpartition(".")[0]
        if part == "qkv" and config.family == "llama":
            names = (_transformers_name(config, number, name).format(letter) for letter in "qkv")
            yield from zip(names, _split_groups(config, tensor), strict=True)
        else:
            yield _transformers_name(config, number, name), _rearranged(config, part, tensor)


def from_transformers(config: ModelConfig, number: int, names: Iterator[str], read: Callable[[str], Tensor]) -> Layer:
    """Return the parameters `names` of layer `number`; `read` returns a tensor by its name in transformers."""
    layer = {}
    for name in names:
        part, _, _ = name.rpartition(".")
        transformers_name = _transformers_name(config, number, name)
        if part == "qkv" and config.family == "llama":
            layer[name] = _join_groups(config, [read(transformers_name.format(letter)) for letter in "qkv"])
        else:
            layer[name] = _restored(config, part, read(transformers_name))
    if config.family == "gpt2" and number == 1:
        layer["weight"] = layer["weight"][: config.sequence]  # a shorter sequence uses the first positions
    return layer


def layer_name(config: ModelConfig, number: int) -> str:
    """Return the name in transformers of layer `number`; empty if it has no parameters there."""
    layers: dict[str, str] = TABLES["layers"][config.family]
    ends = {0: "embedding", 1: "behind", config.layers + 2: "norm", config.layers + 3: "output"}
    return layers[ends[number]] if number in ends else layers["block"].format(number - 2)


def _transformers_name(config: ModelConfig, number: int, name: str) -> str:
    part, _, kind = name.rpartition(".")
    inner = f".{TABLES['tensors'][config.family][part]}" if 2 <= number < config.layers + 2 else ""
    return f"{layer_name(config, number)}{inner}.{kind}"


def _rearranged(config: ModelConfig, part: str, tensor: Tensor) -> Tensor:
    """Return a tensor in GPT-2's arrangement: rows of `qkv` are [q k v, head, …]; matrices of blocks are transposed."""
    if config.family != "gpt2" or not part:
        return tensor
    if part == "qkv":
        tensor = tensor.unflatten(0, (config.heads, 3, config.width_of_head)).transpose(0, 1).flatten(0, 2)
    return tensor.t() if tensor.ndim == 2 else tensor


def _restored(config: ModelConfig, part: str, tensor: Tensor) -> Tensor:
    """Undo `_rearranged`."""
    if config.family != "gpt2" or not part:
        return tensor
    tensor = tensor.t() if tensor.ndim == 2 else tensor
    if part == "qkv":
        tensor = tensor.unflatten(0, (3, config.heads, config.width_of_head)).transpose(0, 1).flatten(0, 2)
    return tensor


def _split_groups(config: ModelConfig, rows: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of queries, keys and values, from rows [group, its queries, key, value, width]."""
    queries = config.heads // config.group_count
    grouped = rows.unflatten(0, (config.group_count, queries + 2, config.width_of_head))
    return tuple(part.flatten(0, 2) for part in grouped.split((queries, 1, 1), dim=1))


def _join_groups(config: ModelConfig, parts: list[Tensor]) -> Tensor:
    """Undo `_split_groups`."""
    grouped = [part.unflatten(0, (config.group_count, -1, config.width_of_head)) for part in parts]
    return torch.cat(grouped, dim=1).flatten(0, 2)
