"""Charts of the metrics in TensorBoard and in Weights & Biases."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from opsctl.trainer.errors import Refused

_TAGS = {
    "loss": "lm-loss-training/lm loss",
    "rate": "learning-rate/learning-rate",
    "batch": "batch-size/batch-size",
    "grad_norm": "grad-norm/grad-norm",
    "step_s": "iteration-time/iteration-time",
    "samples_per_s": "iteration-time/samples per second",
    "tokens_per_s": "iteration-time/tokens per second per gpu",
    "tflops": "iteration-time/TFLOPs per gpu",
    "mfu": "iteration-time/MFU",
    "held_out_loss": "lm-loss-validation/lm loss validation",
}
"""Names of the charts by the names of the metrics; Megatron's where they exist, so that charts of both overlay."""


_MAX_UPLOAD_S = 20.0


class Charts(Protocol):
    """Where the charts are drawn. Both methods may raise any error of the library."""

    what: str
    """Name in messages."""

    def draw(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


def chart_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers to draw by the names of their charts."""
    values = {_TAGS[name]: value for name, value in metrics.items() if name in _TAGS and value is not None}
    if "evaluation_set" in metrics and metrics["evaluation_loss"] is not None:
        values[f"lm-loss-validation/{metrics['evaluation_set']}"] = metrics["evaluation_loss"]
    return values


class TensorBoard:
    """Events in `<directory>/tensorboard`; hides later steps of earlier attempts."""

    what = "TensorBoard's events"

    def __init__(self, directory: Path, *, step: int) -> None:
        """`step` is the first step of this attempt. Raises Refused, OSError."""
        library = _load_library("torch.utils.tensorboard", "tensorboard")
        self._events = library.SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1, flush_secs=30)

    def draw(self, values: Mapping[str, float], step: int) -> None:
        for tag, value in values.items():
            self._events.add_scalar(tag, value, step)

    def close(self) -> None:
        self._events.close()


class WeightsAndBiases:
    """One run for all attempts: its id, project and mode come from the WANDB_* variables, as `[trackers]` sets them."""

    what = "the charts of Weights & Biases"

    def __init__(self, directory: Path, *, train: str, settings: Mapping[str, Any]) -> None:
        """`settings` describe the run. Raises Refused, and wandb's errors."""
        library = _load_library("wandb", "wandb")
        directory.mkdir(parents=True, exist_ok=True)
        self._run = library.init(dir=str(directory), name=train or None, config=dict(settings))
        # An attempt repeats steps of the one before, and the step of wandb cannot go back.
        self._run.define_metric("iteration")
        self._run.define_metric("*", step_metric="iteration")

    def draw(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "iteration": step})

    def close(self) -> None:
        """Wait for the upload, but no longer than the end of an attempt can wait."""
        upload = threading.Thread(target=self._run.finish, daemon=True)
        upload.start()
        upload.join(_MAX_UPLOAD_S)
        if upload.is_alive():
            raise TimeoutError(f"the upload takes longer than {_MAX_UPLOAD_S:g} s")


def _load_library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        key = f"log.{package}"
        raise Refused(f"{key} = true needs the {package} library (pip install {package})") from error
