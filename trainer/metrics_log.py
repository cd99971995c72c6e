"""The metrics: metrics.jsonl, one JSON object per line, and charts. A failed disk or tracker stops no training."""

import json
import math
import threading
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from opsctl.trainer.config_tables import LogConfig
from opsctl.trainer.contract import Env
from opsctl.trainer.errors import Refused, load_library
from opsctl.trainer.heartbeats import note, print_line
from opsctl.trainer.run_state import RunState
from opsctl.trainer.step_log import Interval

_TAGS: dict[str, str] = tomllib.loads(files("opsctl.trainer").joinpath("charts.toml").read_text())
"""Names of the charts by the names of the metrics."""
_MAX_UPLOAD_S = 20.0


class TensorBoard:
    """Events in `<directory>/tensorboard`; hides later steps of earlier attempts. Raises the library's errors."""

    what = "TensorBoard's events"
    """Name in messages."""

    def __init__(self, directory: Path, *, step: int) -> None:
        """`step` is the first step of this attempt. Raises Refused, OSError."""
        library = load_library("torch.utils.tensorboard", "log.tensorboard = true")
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
        library = load_library("wandb", "log.wandb = true")
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


class Metrics:
    """Writes metrics to `log.directory`, or to the run directory; without both, writes nothing."""

    def __init__(
        self,
        config: LogConfig,
        environ: Mapping[str, str],
        *,
        step: int,
        writes: bool,
        tracks: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`step` is the first step of this attempt. `writes`: files are this rank's task; `tracks`: the tracker is."""
        directory = _choose_directory(config, environ)
        self._path = directory / "metrics.jsonl" if directory and writes else None
        self._attempt = environ.get(Env.ATTEMPT, "")
        self._charts: list[TensorBoard | WeightsAndBiases] = []
        self._failures: list[str] = []
        if directory and config.tensorboard and writes:
            try:
                self._charts.append(TensorBoard(directory, step=step))
            except OSError as error:
                self._failures.append(f"TensorBoard's events cannot be written below {directory}: {error.strerror}")
        if directory and config.wandb and tracks:
            train = Path(environ[Env.RUN_DIR]).name if environ.get(Env.RUN_DIR) else ""
            try:
                self._charts.append(WeightsAndBiases(directory, train=train, settings=settings or {}))
            except Refused:
                raise
            except Exception as error:  # noqa: BLE001 - wandb has errors of many kinds, and charts stop no training
                self._failures.append(f"Weights & Biases cannot be used: {error}")

    def interval(self, interval: Interval, state: RunState) -> None:
        self._write(asdict(interval), state)

    def evaluation(self, loss: float, *, batches: int, state: RunState, name: str = "") -> None:
        """Write the loss of an evaluation after the last step; without a `name`, of the held-out samples."""
        kind = "evaluation" if name else "held_out"
        values = {"step": state.step, f"{kind}_loss": loss, f"{kind}_batches": batches}
        self._write(values | ({"evaluation_set": name} if name else {}), state)

    def close(self) -> None:
        for charts in self._charts:
            try:
                charts.close()
            except Exception as error:  # noqa: BLE001 - as above
                print_line(f"the last of {charts.what} are lost: {_reason(error)}")

    def _write(self, values: Mapping[str, Any], state: RunState) -> None:
        finite = {name: _or_null(value) for name, value in values.items()}
        if self._path:
            self._append(self._path, finite, state)
        drawn = chart_values(finite)
        for charts in list(self._charts):
            try:
                charts.draw(drawn, state.step)
            except Exception as error:  # noqa: BLE001 - as above; raised again at every call, so these end here
                self._charts.remove(charts)
                self._failures.append(f"{charts.what} cannot be written: {_reason(error)}")
        for failure in self._failures:
            note(state, failure)

    def _append(self, path: Path, finite: Mapping[str, Any], state: RunState) -> None:
        line = json.dumps({"at": round(time.time(), 3), "attempt": self._attempt, **finite}) + "\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                file.write(line.encode())  # one call, so that lines of two attempts never mix
        except OSError as error:
            note(state, f"metrics {path} cannot be written: {error.strerror}")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _choose_directory(config: LogConfig, environ: Mapping[str, str]) -> Path | None:
    run_dir = environ.get(Env.RUN_DIR)
    if config.directory:
        return Path(config.directory)
    return Path(run_dir, "metrics") if run_dir else None


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def chart_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers to draw by the names of their charts."""
    values = {_TAGS[name]: value for name, value in metrics.items() if name in _TAGS and value is not None}
    if "evaluation_set" in metrics and metrics["evaluation_loss"] is not None:
        values[f"lm-loss-validation/{metrics['evaluation_set']}"] = metrics["evaluation_loss"]
    return values
