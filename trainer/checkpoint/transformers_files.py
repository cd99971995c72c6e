"""The files of weights of transformers: names of tensors, and those that are there. Needs no torch."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from opsctl.trainer.bounded_files import open_regular, read_bounded
from opsctl.trainer.errors import Refused, load_library
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.model_size import layer_parameters

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
"""Files of weights: where each tensor is, or all tensors. As transformers does, the single file is taken first."""
_MAX_INDEX_BYTES = 64 << 20
_NUMBERS = ("F64", "F32", "F16", "BF16")
_MAX_SHOWN = 40


def has_weights(directory: Path) -> bool:
    return any((directory / name).exists() for name in (INDEX, SINGLE))


class StoredTensors:
    """The tensors in the safetensors files of a directory, for numpy ("np") or torch ("pt").

    A file stays open until the end of `stack`. Raises Refused, OSError.
    """

    def __init__(self, directory: Path, stack: ExitStack, *, framework: str) -> None:
        self.directory = directory
        self.files: dict[str, Any] = {}
        """The open file of every tensor by its name: of the files, whatever the index leaves out."""
        for name in _files(directory):
            file = stack.enter_context(_open(directory / name, framework))
            self.files |= dict.fromkeys(file.keys(), file)

    def refuse_unread(self, config: ModelConfig) -> None:
        """Raise Refused if a tensor would be left out or holds no plain numbers, with the names of all of them."""
        known = {next((name for name in spellings(one) if name in self.files), one) for one in _names(config)}
        unread = [name for name in self.files.keys() - known if not re.search(config.kind.buffers, name)]
        kinds = {name: file.get_slice(name).get_dtype() for name, file in self.files.items() if name in known}
        coded = [f"{name} ({kind})" for name, kind in kinds.items() if kind not in _NUMBERS]
        problems = [f"{_listed(unread)}, which the model of its config.json does not have"] if unread else []
        problems += [f"{_listed(coded)}, whose numbers stand for others: its weights are quantised"] if coded else []
        if problems:
            raise Refused(f"{self.directory} has {'; and '.join(problems)}")


def _open(path: Path, framework: str) -> Any:
    library = load_library("safetensors", path, extra="export")
    try:
        os.close(open_regular(path, follow=True))  # a pipe would block
        return library.safe_open(path, framework=framework)
    except (OSError, library.SafetensorError) as error:
        raise Refused(f"{path} cannot be read as safetensors: {error}") from error


def _files(directory: Path) -> list[str]:
    if (directory / SINGLE).exists():
        return [SINGLE]
    try:
        weight_map = json.loads(read_bounded(directory / INDEX, _MAX_INDEX_BYTES, follow=True))["weight_map"]
        names = sorted(set(weight_map.values()))
        if foreign := next((name for name in names if Path(name).name != name), None):
            raise Refused(f"{directory}/{INDEX} names {foreign!r:.80}, which is not a file of its directory")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"{directory}/{INDEX} cannot be understood: {error!r}") from error
    return names


def layer_name(config: ModelConfig, number: int) -> str:
    """Return the name in transformers of layer `number`; empty if it has no parameters there."""
    layers = config.kind.layers
    ends = {0: "embedding", 1: "behind", config.layers + 2: "norm", config.layers + 3: "output"}
    return layers[ends[number]] if number in ends else layers["block"].format(number - 2)


def tensor_name(config: ModelConfig, number: int, name: str) -> str:
    """Return the name in transformers of the parameter `name` of layer `number`; {} stands for q, k and v."""
    part, _, kind = name.rpartition(".")
    inner = f".{config.kind.tensors[part]}" if 2 <= number < config.layers + 2 else ""
    return f"{layer_name(config, number)}{inner}.{kind}"


def spellings(name: str) -> tuple[str, str]:
    """Return the name with and without the prefix that GPT-2's and BLOOM's own files leave out."""
    return name, name.removeprefix("transformer.")


def _names(config: ModelConfig) -> Iterator[str]:
    for number in range(config.layers + 4):
        for name in layer_parameters(config, number):
            yield from {tensor_name(config, number, name).format(letter) for letter in "qkv"}
    yield f"{layer_name(config, config.layers + 3)}.weight"  # a tied output may be there too


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(sorted(names)[:_MAX_SHOWN]) + more
