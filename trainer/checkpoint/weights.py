"""The weights of a checkpoint, layer by layer, with the slices of tensor ranks merged."""

import re
from pathlib import Path

import torch

from opsctl.trainer import architecture, manifest
from opsctl.trainer.checkpoint.pickles import load
from opsctl.trainer.errors import Refused
from opsctl.trainer.manifest import Manifest
from opsctl.trainer.model_config import ModelConfig

_FILE = re.compile(r"layer_(\d+)-(?:model_(\d+)-)?model_states\.pt")


class Weights:
    """Reads one layer at a time, so that the largest layer determines the memory."""

    def __init__(self, checkpoint: Path, saved: Manifest, *, trust: bool = False) -> None:
        if saved.kind == manifest.UNIVERSAL:
            raise Refused(f"{checkpoint} is of kind universal; use the checkpoint that the trainer saved")
        self._trust = trust
        self.config = ModelConfig(**saved.model)
        self._files: dict[int, list[Path]] = {}
        for name in sorted(saved.files):
            if match := _FILE.fullmatch(name):
                self._files.setdefault(int(match[1]), []).append(checkpoint / name)
        expected = architecture.stored_layers(self.config)
        if sorted(self._files) != list(range(expected)):
            raise Refused(f"{checkpoint} has files of {len(self._files)} layers, not of {expected}")

    @property
    def layers(self) -> range:
        """Numbers of the layers: embedding, position or norm, blocks, final norm, and an output that is not tied."""
        return range(len(self._files))

    def layer(self, number: int) -> dict[str, torch.Tensor]:
        parts = [load(path, trust=self._trust) for path in self._files[number]]
        return {name: self._merge(f"{number}.{name}", [part[name] for part in parts]) for name in parts[0]}

    def _merge(self, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        axis = cut_axis(self.config, name)
        return parts[0] if len(parts) == 1 or axis is None else torch.cat(parts, dim=axis)


def cut_axis(config: ModelConfig, name: str) -> int | None:
    """Return the axis along which tensor ranks cut the parameter `<layer>.<name>`; None if every rank holds all."""
    info = architecture.universal_info(config)
    if _matches(name, info["tp_replicated_parameter_patterns"]):
        return None
    return 1 if _matches(name, info["parameter_with_row_parallelism_patterns"]) else 0


def _matches(name: str, patterns: list[str]) -> bool:
    return any(re.match(pattern, name) for pattern in patterns)
