"""The weights of a model of Hugging Face's transformers, as the beginning of a run: continued pre-training, annealing.

Every rank reads only the tensors of its own layers and keeps its slices, so that any layout can begin.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opsctl.trainer.checkpoint.transformers_config import refuse_other_model
from opsctl.trainer.checkpoint.transformers_files import StoredTensors, layer_name, spellings
from opsctl.trainer.checkpoint.transformers_names import from_transformers
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
