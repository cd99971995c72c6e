"""The log for machines: one JSON object a line, and TensorBoard's events. No disk that fails them stops the trainer."""

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
from opsctl.trainer.heartbeats import note, say
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
"""Megatron's names of charts, where it has one: old and new runs lie over each other."""


class Metrics:
    """Where the numbers of a run are kept: as the config says, or in the run's directory; nowhere without one."""

    def __init__(self, config: LogConfig, environ: Mapping[str, str], *, step: int, writes: bool) -> None:
        """`step` is where this attempt begins: what an earlier one told of later steps is not shown any more."""
        run_dir = environ.get(Env.RUN_DIR)
        directory = Path(config.directory) if config.directory else Path(run_dir, "metrics") if run_dir else None
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

    def interval(self, told: Interval, state: RunState) -> None:
        """Keep what the log line says."""
        self._keep(asdict(told), state)

    def evaluation(self, loss: float, *, batches: int, state: RunState) -> None:
        """Keep what an evaluation after the last step found."""
        self._keep({"step": state.step, "held_out_loss": loss, "held_out_batches": batches}, state)

    def close(self) -> None:
        """Have all of it on disk."""
        if self._events:
            try:
                self._events.close()
            except OSError as error:
                say(f"TensorBoard's last events are lost: {error.strerror}")

    def _keep(self, values: Mapping[str, Any], state: RunState) -> None:
        if self._path is None:
            return
        finite = {name: _or_null(value) for name, value in values.items()}
        line = json.dumps({"at": round(time.time(), 3), "attempt": self._attempt, **finite}) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                file.write(line.encode())  # in one call, so that two attempts never mix within a line
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
        except OSError as error:  # of its own thread, and again at each call: no more is drawn in this attempt
            self._events, self._failed = None, f"TensorBoard's events cannot be written: {error.strerror}"


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tensorboard_library() -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise Refused("log.tensorboard = true needs the tensorboard library (pip install tensorboard)") from error
