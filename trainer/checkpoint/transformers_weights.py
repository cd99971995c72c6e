"""The weights of a model of Hugging Face's transformers, as the beginning of a run: continued pre-training, annealing.

Every rank reads only the tensors of its own layers and keeps its slices, so that any layout can begin.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opsctl.trainer.checkpoint.transformers_config import read_model
from opsctl.trainer.checkpoint.transformers_names import from_transformers
from opsctl.trainer.checkpoint.weights import cut_axis
from opsctl.trainer.contract import read_bounded
from opsctl.trainer.errors import Refused
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.tensor_parallel import Slice

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_INDEX_BYTES = 64 << 20
_FREE = ("dropout", "init_std", "sequence")
"""Keys of the model table that the weights do not determine."""


def load_weights(layers: Mapping[int, nn.Module], directory: Path, config: ModelConfig, part: Slice) -> None:
    """Replace the parameters of `layers`, by their number in the whole model, by this rank's slices of the weights.

    Raises Refused if the directory holds another model or lacks a tensor; OSError.
    """
    _refuse_other_model(directory, config)
    with ExitStack() as stack, torch.no_grad():
        read = _Reader(directory, stack)
        for number, module in layers.items():
            parameters = dict(module.named_parameters())
            for name, whole in from_transformers(config, number, iter(parameters), read).items():
                axis = cut_axis(config, f"{number}.{name}")
                sliced = whole if axis is None or part.size == 1 else part.of(whole, dim=axis)
                if sliced.shape != parameters[name].shape:
                    raise Refused(
                        f"{directory}: {name} of layer {number} is {list(sliced.shape)} there and"
                        f" {list(parameters[name].shape)} here"
                    )
                parameters[name].copy_(sliced)


def _refuse_other_model(directory: Path, config: ModelConfig) -> None:
    there = read_model(directory, sequence=config.sequence)
    both = [
        (key, _resolved(there, key), _resolved(config, key)) for key in ModelConfig.model_fields if key not in _FREE
    ]
    if differences := [f"{key} is {theirs} there and {ours} here" for key, theirs, ours in both if theirs != ours]:
        raise Refused(f"{directory} is another model: {'; '.join(differences)} (opsctl checkpoint import prints it)")
    longest = read_model(directory).sequence if config.family == "gpt2" else config.sequence
    if config.sequence > longest:
        raise Refused(f"{directory} has {longest} learnt positions, fewer than sequence = {config.sequence}")


def _resolved(model: ModelConfig, key: str) -> Any:
    """Return the value of a key, or what stands for an absent one."""
    if model.family != "llama":
        return getattr(model, key)
    resolved = {
        "kv_heads": model.group_count,
        "head_width": model.width_of_head,
        "ffn": model.width_of_ffn,
        "rope_theta": model.rope_theta or 10_000.0,
        "norm_eps": model.norm_eps or 1e-5,
        "tied": model.is_tied,
    }
    return resolved.get(key, getattr(model, key))


class _Reader:
    """Reads single tensors of the safetensors files of a directory; a file stays open until the end of `stack`."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._files: dict[str, Any] = {}
        self._map = dict(_map_names(directory, self))

    def __call__(self, name: str) -> Tensor:
        shorter = name.removeprefix("transformer.")  # GPT-2's and BLOOM's own files leave the prefix out
        known = next((spelled for spelled in (name, shorter) if spelled in self._map), None)
        if known is None:
            raise Refused(f"{self._directory} has no tensor {name}")
        return self.open(self._map[known]).get_tensor(known).float()

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


def _map_names(directory: Path, reader: _Reader) -> Iterator[tuple[str, str]]:
    """Yield the names of all tensors and the file that holds each."""
    if not (directory / _INDEX).exists():
        if not (directory / _SINGLE).exists():
            raise Refused(f"{directory} has neither {_INDEX} nor {_SINGLE}: only safetensors are read")
        yield from ((name, _SINGLE) for name in reader.open(_SINGLE).keys())  # noqa: SIM118 - no mapping
        return
    try:
        weight_map = json.loads(read_bounded(directory / _INDEX, _MAX_INDEX_BYTES, follow=True))["weight_map"]
        for name, file in weight_map.items():
            if Path(file).name != file:
                raise Refused(f"{directory}/{_INDEX} names {file!r:.80}, which is not a file of its directory")
            yield name, file
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(f"{directory}/{_INDEX} cannot be understood: {error!r}") from error
