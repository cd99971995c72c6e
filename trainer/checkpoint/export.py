"""Export of a checkpoint to Hugging Face's `transformers`, one file of weights per layer."""

import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from opsctl.trainer import architecture, gpt
from opsctl.trainer.atomic_files import write_atomic
from opsctl.trainer.checkpoint.rewrite import new_directory, read_verified
from opsctl.trainer.checkpoint.transformers_config import read_fields, refuse_other_config, write_config
from opsctl.trainer.checkpoint.transformers_keys import TABLES, with_defaults
from opsctl.trainer.checkpoint.transformers_names import to_transformers
from opsctl.trainer.checkpoint.weights import Weights
from opsctl.trainer.errors import Refused
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.tensor_parallel import Slice

_TOKENIZER = ("tokenizer*", "vocab.*", "merges.txt", "added_tokens.json", "special_tokens_map.json", "chat_template*")
"""Files of a tokenizer in a directory of transformers."""
_GENERATION = "generation_config.json"
"""How a model writes: that it ends at several tokens, say."""
_LONGEST = ("max_position_embeddings", "seq_length")
"""What the longest sequence is called; samples of the run may be shorter."""
_OF_FILE = ("_name_or_path", "auto_map", "dtype", "quantization_config", "torch_dtype", "transformers_version")
"""What a config.json says of its own files."""
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def export(
    checkpoint: Path, target: Path, *, tokenizer: Path | None = None, trust: bool = False, in_bf16: bool = False
) -> Path:
    """Write the weights of `checkpoint` into the directory `target`, completely or not at all; return `target`.

    `tokenizer` is a model of transformers whose tokenizer and special tokens are copied. `in_bf16` halves weights of
    fp32. Raises Refused, OSError.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - of the `export` extra

    saved = read_verified(checkpoint)
    weights = Weights(checkpoint, saved, trust=trust)
    dtype = torch.bfloat16 if in_bf16 or saved.precision == "bf16" else torch.float32
    config = write_config(weights.config) | {"dtype": str(dtype).removeprefix("torch.")}
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
            config |= _copy_tokenizer(tokenizer, part) | kind_of(tokenizer, weights.config)
        write_atomic(part / "config.json", json.dumps(config, indent=1) + "\n")
    return target


def _copy_tokenizer(source: Path, target: Path) -> dict[str, Any]:
    """Copy the files of the tokenizer, if there are any; return the special tokens of the config in `source`."""
    fields = read_fields(source)
    for path in sorted(set(chain.from_iterable(source.glob(pattern) for pattern in (*_TOKENIZER, _GENERATION)))):
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    return {key: fields[key] for key in _TOKENS if key in fields}


def kind_of(source: Path, config: ModelConfig) -> dict[str, Any]:
    """Return what the config of `source` states, if `config` is the same model: its type, windows, longest sequence."""
    try:
        refuse_other_config(source, config)
    except (OSError, Refused):
        return {}
    own = ("vocab_size", "n_positions", *TABLES["config"][config.family]["dropout"], *_OF_FILE)
    fields = {key: value for key, value in with_defaults(read_fields(source)).items() if key not in own}
    longest = {key: max(fields[key], config.sequence) for key in _LONGEST if key in fields}
    return fields | longest


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
