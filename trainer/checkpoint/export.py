"""Export of a checkpoint to Hugging Face's `transformers`, one file of weights per layer."""

import json
import re
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from opsctl.trainer import architecture, gpt, manifest
from opsctl.trainer.atomic_files import write_atomic
from opsctl.trainer.checkpoint.pickles import load
from opsctl.trainer.checkpoint.rewrite import new_directory, read_verified
from opsctl.trainer.checkpoint.transformers_config import read_fields, write_config
from opsctl.trainer.checkpoint.transformers_weights import to_transformers
from opsctl.trainer.errors import Refused
from opsctl.trainer.manifest import Manifest
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.model_size import layer_parameters
from opsctl.trainer.tensor_parallel import Slice

_COPIED = ("tokenizer*", "vocab.*", "merges.txt", "added_tokens*", "special_tokens*", "chat_template*", "generation*")
"""Files of a tokenizer in a directory of transformers, and how the model writes: it ends at several tokens, say."""
_LAYER = re.compile(r"layer_(\d+)-(?:model_(\d+)-)?model_states\.pt")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


class Weights:
    """The weights of a checkpoint, with the slices of tensor ranks merged.

    Reads one layer at a time, so that the largest layer determines the memory.
    """

    def __init__(self, checkpoint: Path, saved: Manifest, *, trust: bool = False) -> None:
        if saved.kind == manifest.UNIVERSAL:
            raise Refused(f"{checkpoint} is of kind universal; use the checkpoint that the trainer saved")
        self._trust = trust
        self.config = ModelConfig(**saved.model)
        self._files: dict[int, list[Path]] = {}
        for name in sorted(saved.files):
            if match := _LAYER.fullmatch(name):
                self._files.setdefault(int(match[1]), []).append(checkpoint / name)
        expected = self.config.layers + (3 if self.config.is_tied else 4)  # a tied output has no weights of its own
        if sorted(self._files) != list(range(expected)):
            raise Refused(f"{checkpoint} has files of {len(self._files)} layers, not of {expected}")
        self.layers = range(expected)
        """Numbers of the layers: embedding, position or norm, blocks, final norm, and an output that is not tied."""

    def layer(self, number: int) -> dict[str, torch.Tensor]:
        parts = [load(path, trust=self._trust) for path in self._files[number]]
        return {name: self._merge(number, name, [part[name] for part in parts]) for name in parts[0]}

    def _merge(self, number: int, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        axis = layer_parameters(self.config, number)[name].axis
        return parts[0] if len(parts) == 1 or axis is None else torch.cat(parts, dim=axis)


def export(
    checkpoint: Path, target: Path, *, tokenizer: Path | None = None, trust: bool = False, in_bf16: bool = False
) -> Path:
    """Write the weights of `checkpoint` into the directory `target`, completely or not at all; return `target`.

    `tokenizer` is a model of transformers whose tokenizer, special tokens and settings of generation are copied; if
    the run began with it, the export is of the same type and states the same longest sequence. `in_bf16` halves weights
    of fp32. Raises Refused, OSError.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - of the `export` extra

    saved = read_verified(checkpoint)
    weights = Weights(checkpoint, saved, trust=trust)
    dtype = torch.bfloat16 if in_bf16 or saved.precision == "bf16" else torch.float32
    first = read_fields(tokenizer) if tokenizer else {}
    config = write_config(weights.config, like=first) | {key: first[key] for key in _TOKENS if key in first}
    config |= {"dtype": str(dtype).removeprefix("torch.")}
    with new_directory(target) as part:
        count = len(weights.layers)
        where: dict[str, str] = {}
        for number in weights.layers:
            named = to_transformers(weights.config, number, weights.layer(number))
            tensors = {name: (tensor.to(dtype) if in_bf16 else tensor).contiguous() for name, tensor in named}
            if not tensors:  # dropout has none
                continue
            file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
            save_file(tensors, part / file, metadata={"format": "pt"})
            where |= dict.fromkeys(tensors, file)
        size = sum(path.stat().st_size for path in part.iterdir())
        index = {"metadata": {"total_size": size}, "weight_map": where}
        write_atomic(part / "model.safetensors.index.json", json.dumps(index, indent=1))
        if tokenizer:
            _copy_tokenizer(tokenizer, part)
        write_atomic(part / "config.json", json.dumps(config, indent=1) + "\n")
    return target


def _copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files of the tokenizer and of generation, if there are any."""
    for path in sorted(set(chain.from_iterable(source.glob(pattern) for pattern in _COPIED))):
        if path.is_file():
            shutil.copyfile(path, target / path.name)


def compare(checkpoint: Path, exported: Path, *, samples: int = 2, trust: bool = False) -> float:
    """Return the largest difference of fp32 logits between this trainer and transformers, over random tokens."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - of the `export` extra

    weights = Weights(checkpoint, read_verified(checkpoint), trust=trust)
    generator = torch.Generator().manual_seed(0)
    shape = (samples, weights.config.sequence)
    tokens = torch.randint(weights.config.vocabulary, shape, generator=generator)
    theirs = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)  # a local directory  # nosec B615
    theirs.train(mode=False)
    with torch.no_grad():
        return float((theirs(tokens).logits - logits(weights, tokens)).abs().max())


def logits(weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Return fp32 logits of the next tokens, [b, s, vocabulary], without dropout; one layer in memory at a time."""
    *layers, output = architecture.layers(weights.config, seed=0, part=Slice())
    x = tokens
    with torch.no_grad():
        for number, layer in enumerate(layers):
            x = _build(layer, weights.layer(number))(x)
        if weights.config.is_tied:
            return gpt.logits(_build(output, weights.layer(0)), x)
        return _build(output, weights.layer(len(layers)))(x)


def _build(layer: Any, weights: dict[str, torch.Tensor]) -> Any:
    module = layer.build().float()
    module.load_state_dict(weights)
    return module.train(mode=False)
