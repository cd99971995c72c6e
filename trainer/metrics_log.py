"""The metrics: metrics.jsonl, one JSON object per line, and TensorBoard's events. A failed disk stops no training."""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opsctl.trainer.config_tables import LogConfig
from opsctl.trainer.contract import Env
from opsctl.trainer.errors import Refused
from opsctl.trainer.heartbeats import note, print_line
from opsctl.trainer.run_state import RunState
from opsctl.trainer.step_log import Interval

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
"""Names of TensorBoard's charts; Megatron's names where they exist, so that charts of both trainers overlay."""


class Metrics:
    """Writes metrics to `log.directory`, or to the run directory; without both, writes nothing."""

    def __init__(self, config: LogConfig, environ: Mapping[str, str], *, step: int, writes: bool) -> None:
        """`step` is the first step of this attempt; TensorBoard hides later steps of earlier attempts."""
        directory = _choose_directory(config, environ)
        self._path = directory / "metrics.jsonl" if directory and writes else None
        self._attempt = environ.get(Env.ATTEMPT, "")
        self._events: Any = None
        self._failed = ""
        if directory and config.tensorboard and writes:
            library = _tensorboard_library()
            try:
                self._events = library.SummaryWriter(str(directory / "tensorboard"), purge_step=step + 1, flush_secs=30)
            except OSError as error:
                self._failed = f"TensorBoard's events cannot be written below {directory}: {error.strerror}"

    def interval(self, interval: Interval, state: RunState) -> None:
        """Write the metrics of a log line."""
        self._write(asdict(interval), state)

    def evaluation(self, loss: float, *, batches: int, state: RunState) -> None:
        """Write the held-out loss of an evaluation after the last step."""
        self._write({"step": state.step, "held_out_loss": loss, "held_out_batches": batches}, state)

    def close(self) -> None:
        """Flush and close TensorBoard's events."""
        if self._events:
            try:
                self._events.close()
            except OSError as error:
                print_line(f"TensorBoard's last events are lost: {error.strerror}")

    def _write(self, values: Mapping[str, Any], state: RunState) -> None:
        if self._path is None:
            return
        finite = {name: _or_null(value) for name, value in values.items()}
        line = json.dumps({"at": round(time.time(), 3), "attempt": self._attempt, **finite}) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                file.write(line.encode())  # one call, so that lines of two attempts never mix
        except OSError as error:
            note(state, f"metrics {self._path} cannot be written: {error.strerror}")
        self._draw(finite, state)
        if self._failed:
            note(state, self._failed)

    def _draw(self, finite: Mapping[str, Any], state: RunState) -> None:
        if not self._events:
            return
        try:
            for name in finite.keys() & _TAGS.keys():
                if finite[name] is not None:
                    self._events.add_scalar(_TAGS[name], finite[name], state.step)
        except OSError as error:  # raised again at every call: this attempt draws no more
            self._events, self._failed = None, f"TensorBoard's events cannot be written: {error.strerror}"


def _choose_directory(config: LogConfig, environ: Mapping[str, str]) -> Path | None:
    run_dir = environ.get(Env.RUN_DIR)
    if config.directory:
        return Path(config.directory)
    return Path(run_dir, "metrics") if run_dir else None


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tensorboard_library() -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise Refused("log.tensorboard = true needs the tensorboard library (pip install tensorboard)") from error
