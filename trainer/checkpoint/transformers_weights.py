"""The weights of a model of Hugging Face's transformers, as the beginning of a run: continued pre-training, annealing.

Every rank reads only the tensors of its own layers and keeps its slices, so that any layout can begin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opsctl.trainer.bounded_files import read_bounded
from opsctl.trainer.checkpoint.transformers_config import INDEX, SINGLE, refuse_other_model
from opsctl.trainer.checkpoint.transformers_names import from_transformers, layer_name
from opsctl.trainer.checkpoint.weights import cut_axis
from opsctl.trainer.errors import Refused
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.tensor_parallel import Slice

_MAX_INDEX_BYTES = 64 << 20
_BUFFERS = {"llama": re.compile(r"\.rotary_emb\.inv_freq$"), "gpt2": re.compile(r"\.attn\.(masked_)?bias$")}
"""Tensors of older files that follow from the configuration, by family."""
_NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_MAX_SHOWN = 40


def load_weights(layers: Mapping[int, nn.Module], directory: Path, config: ModelConfig, part: Slice) -> None:
    """Replace the parameters of `layers`, by their number in the whole model, by this rank's slices of the weights.

    A larger vocabulary than the model's gets rows for the added tokens. Raises Refused if the directory holds another
    model, lacks a tensor or has one that would be left out; OSError.
    """
    refuse_other_model(directory, config)
    with ExitStack() as stack, torch.no_grad():
        read = _Reader(directory, stack)
        for number, module in layers.items():
            parameters = dict(module.named_parameters())
            for name, stored in from_transformers(config, number, iter(parameters), read).items():
                is_vocabulary = number in (0, config.layers + 3)
                whole = _pad(stored, config.vocabulary) if is_vocabulary else stored
                axis = cut_axis(config, f"{number}.{name}")
                sliced = whole if axis is None or part.size == 1 else part.of(whole, dim=axis)
                if sliced.shape != parameters[name].shape:
                    raise Refused(
                        f"{directory}: {name} of layer {number} is {list(sliced.shape)} there and"
                        f" {list(parameters[name].shape)} here"
                    )
                parameters[name].copy_(sliced)
            if number == 0 and config.is_tied:
                _refuse_other_output(directory, config, read)
        read.refuse_rest(config, layers)


def _pad(rows: Tensor, count: int) -> Tensor:
    """Return `count` rows: those of the model, and their mean for every added token.

    A logit of the mean is the mean of all logits, so the loss grows by at most log(1 + added rows / rows).
    """
    added = count - len(rows)
    return torch.cat((rows, rows.mean(dim=0, keepdim=True).expand(added, -1))) if added > 0 else rows


def _refuse_other_output(directory: Path, config: ModelConfig, read: _Reader) -> None:
    """Raise Refused if the directory has an output of its own, which a tied model would leave out."""
    output, embedding = (f"{layer_name(config, number)}.weight" for number in (config.layers + 3, 0))
    if output in read and not read(output).equal(read(embedding)):
        raise Refused(
            f"{directory}: {output} differs from the embedding, and the model is tied: set"
            " tie_word_embeddings = false in its config.json, and tied = false (only with family = llama)"
        )


class _Reader:
    """Reads single tensors of the safetensors files of a directory; a file stays open until the end of `stack`."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._files: dict[str, Any] = {}
        self._map = dict(_map_names(directory, self))
        self._unread = set(self._map)
        self._broken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._map

    def __call__(self, name: str) -> Tensor:
        known = next((spelled for spelled in _spellings(name) if spelled in self._map), None)
        if known is None:
            raise Refused(f"{self._directory} has no tensor {name}")
        self._unread.discard(known)
        tensor = self.open(self._map[known]).get_tensor(known)
        if tensor.dtype not in _NUMBERS or not tensor.float().isfinite().all():
            self._broken.add(f"{known} ({str(tensor.dtype).removeprefix('torch.')})")
        exact: Tensor = tensor.float()
        return exact

    def refuse_rest(self, config: ModelConfig, layers: Iterable[int]) -> None:
        """Raise Refused if a tensor would be left out or holds no plain numbers, with the names of all of them.

        Tensors of layers that this rank does not hold are the matter of the ranks that do.
        """
        elsewhere = set(range(config.layers + 4)) - set(layers) - ({config.layers + 3} if config.is_tied else set())
        names = (layer_name(config, number) for number in elsewhere)
        prefixes = tuple(chain.from_iterable(_spellings(f"{name}.") for name in names if name))
        buffers = _BUFFERS.get(config.family)
        output = f"{layer_name(config, config.layers + 3)}.weight"
        left = {name for name in self._unread if not (name.startswith(prefixes) or (buffers and buffers.search(name)))}
        left -= {output} if config.is_tied else set()
        problems = [f"{_listed(left)}, which the model of its config.json does not have"] if left else []
        problems += [f"{_listed(self._broken)}, with quantised or infinite numbers or NaN"] if self._broken else []
        if problems:
            raise Refused(f"{self._directory} has {'; and '.join(problems)}")

    def open(self, file: str) -> Any:
        """Return the open file. Raises Refused if it is missing or no safetensors file."""
        if file not in self._files:
            try:
                from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - of the `export` extra
            except ImportError as error:
                raise Refused("starting from weights needs safetensors (pip install 'opsctl-slurm[export]')") from error
            try:
                self._files[file] = self._stack.enter_context(safe_open(self._directory / file, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise Refused(f"{self._directory / file} cannot be read: {error}") from error
        return self._files[file]


def _listed(names: set[str]) -> str:
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(sorted(names)[:_MAX_SHOWN]) + more


def _spellings(name: str) -> tuple[str, str]:
    """Return the name with and without the prefix that GPT-2's and BLOOM's own files leave out."""
    return name, name.removeprefix("transformer.")


def _map_names(directory: Path, reader: _Reader) -> Iterator[tuple[str, str]]:
    """Yield the names of all tensors and the file that holds each, also of those that the index leaves out."""
    if (directory / SINGLE).exists():  # as transformers prefers
        yield from ((name, SINGLE) for name in reader.open(SINGLE).keys())  # noqa: SIM118 - no mapping
        return
    try:
        weight_map = json.loads(read_bounded(directory / INDEX, _MAX_INDEX_BYTES, follow=True))["weight_map"]
        for file in sorted(set(weight_map.values())):
            if Path(file).name != file:
                raise Refused(f"{directory}/{INDEX} names {file!r:.80}, which is not a file of its directory")
            yield from ((name, file) for name in reader.open(file).keys())  # noqa: SIM118 - no mapping
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{directory}/{INDEX} cannot be understood: {error!r}") from error
