"""The weights of a model of Hugging Face's transformers, as the beginning of a run, and their names in both directions.

Every rank reads only the tensors of its own layers and keeps its slices, so that any layout can begin.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opsctl.trainer.checkpoint.transformers_config import refuse_other_model
from opsctl.trainer.checkpoint.transformers_files import StoredTensors, layer_name, spellings, tensor_name
from opsctl.trainer.errors import Refused
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.model_size import layer_parameters
from opsctl.trainer.tensor_parallel import Slice


def load_weights(layers: Mapping[int, nn.Module], directory: Path, config: ModelConfig, part: Slice) -> None:
    """Replace the parameters of `layers`, by their number in the whole model, by this rank's slices of the weights.

    A larger vocabulary than the model's gets rows for the added tokens. Raises Refused if the directory holds another
    model, lacks a tensor, has one that would be left out, or one that is not finite; OSError.
    """
    refuse_other_model(directory, config)
    with ExitStack() as stack, torch.no_grad():
        read = _Reader(directory, stack)
        read.refuse_unread(config)
        for number, module in layers.items():
            parameters = dict(module.named_parameters())
            for name, stored in _read_layer(config, number, parameters, read).items():
                is_vocabulary = number in (0, config.layers + 3)
                whole = _pad(stored, config.vocabulary) if is_vocabulary else stored
                axis = layer_parameters(config, number)[name].axis
                sliced = whole if axis is None or part.size == 1 else part.of(whole, dim=axis)
                if sliced.shape != parameters[name].shape:
                    raise Refused(
                        f"{directory}: {name} of layer {number} is {list(sliced.shape)} there and"
                        f" {list(parameters[name].shape)} here"
                    )
                parameters[name].copy_(sliced)
            if number == 0 and config.is_tied:
                _refuse_other_output(directory, config, read)
        if read.broken:
            raise Refused(f"{directory} has numbers that are not finite in {', '.join(sorted(read.broken))}")


def _read_layer(config: ModelConfig, number: int, parameters: Mapping[str, Any], read: "_Reader") -> dict[str, Tensor]:
    try:
        return from_transformers(config, number, iter(parameters), read)
    except RuntimeError as error:  # torch's, of a tensor that cannot be arranged
        raise Refused(f"{read.directory}: {read.last} has another shape than config.json says: {error}") from error


def _pad(rows: Tensor, count: int) -> Tensor:
    """Return `count` rows: those of the model, and their mean for every added token.

    A logit of the mean is the mean of all logits, so the loss grows by at most log(1 + added rows / rows).
    """
    added = count - len(rows)
    return torch.cat((rows, rows.mean(dim=0, keepdim=True).expand(added, -1))) if added > 0 else rows


def _refuse_other_output(directory: Path, config: ModelConfig, read: "_Reader") -> None:
    """Raise Refused if the directory has an output of its own, which a tied model would leave out."""
    output, embedding = (f"{layer_name(config, number)}.weight" for number in (config.layers + 3, 0))
    if output in read.files and not read(output).equal(read(embedding)):
        raise Refused(
            f"{directory}: {output} differs from the embedding, and the model is tied: set"
            " tie_word_embeddings = false in its config.json, and import it again"
        )


class _Reader(StoredTensors):
    """Reads single tensors, in fp32."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack, framework="pt")
        self.last = ""
        self.broken: set[str] = set()
        """Tensors with NaN or infinity among those that were read."""

    def __call__(self, name: str) -> Tensor:
        known = next((spelled for spelled in spellings(name) if spelled in self.files), None)
        if known is None:
            raise Refused(f"{self.directory} has no tensor {name}")
        self.last = known
        tensor: Tensor = self.files[known].get_tensor(known).float()
        if not tensor.isfinite().all():
            self.broken.add(known)
        return tensor


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
