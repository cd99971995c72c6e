"""The log line of the steps since the last log line, and its values as a record."""

import math
from dataclasses import dataclass

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.config_tables import is_due
from opsctl.trainer.model_size import peak_tflops, step_flops
from opsctl.trainer.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The steps since the last log line. `loss` and `step_s` are means; the other values belong to the last step."""

    step: int
    steps: int
    """The step at which the run ends."""
    consumed_samples: int
    consumed_tokens: int
    step_s: float
    rate: float
    batch: int
    loss: float
    grad_norm: float
    nans: int
    samples_per_s: float
    tokens_per_s: float
    """Per GPU."""
    tflops: float
    """Per GPU, including the recomputed forward pass, as Megatron counts."""
    model_tflops: float
    """Per GPU, without recomputation."""
    mfu: float | None
    """`model_tflops` over the GPU's peak; None if the peak is unknown."""

    def line(self) -> str:
        """Return Megatron's log line with additional fields at its end."""
        fields = [
            f"iteration {self.step:8d}/{self.steps:8d}",
            f"consumed samples: {self.consumed_samples:12d}",
            f"consumed tokens: {self.consumed_tokens:12d}",
            f"elapsed time per iteration (s): {self.step_s:.3f}",
            f"learning rate: {self.rate:.3E}",
            f"global batch size: {self.batch:5d}",
            f"lm loss: {self.loss:.6E}",
            f"grad norm: {self.grad_norm:.3f}",
            "num zeros: 0.0",
            "number of skipped iterations:   0",
            f"number of nan iterations: {self.nans:3d}",
            f"samples per second: {self.samples_per_s:.3f}",
            f"TFLOPs: {self.tflops:.2f}",
            f"tokens/s/GPU: {self.tokens_per_s:.1f}",
        ]
        if self.model_tflops != self.tflops:
            fields.append(f"model TFLOPs: {self.model_tflops:.2f}")
        if self.mfu is not None:
            fields.append(f"MFU: {self.mfu:.1%}")
        return " " + " | ".join(fields) + " |"


class StepLog:
    """Accumulates steps, and reports every `log.every` steps and at the end of the run."""

    def __init__(self, config: TrainerConfig, world_size: int, *, device: str = "") -> None:
        """`device` is the driver's name of the GPU; empty without a GPU."""
        self._config, self._world = config, world_size
        self._peak = config.log.peak_tflops or peak_tflops(device)
        self._losses: list[float] = []
        self._seconds = 0.0
        self._samples = 0

    def add(self, state: RunState, *, rate: float, batch: int) -> Interval | None:
        """Add the last step, of `batch` samples; return the interval if a log line is due."""
        assert state.loss is not None and state.step_s is not None
        self._losses.append(state.loss)
        self._seconds += state.step_s
        self._samples += batch
        if not is_due(state.step, self._config.log.every) and state.step != self._config.steps:
            return None
        interval = self._interval(state, rate=rate, batch=batch)
        self._losses, self._seconds, self._samples = [], 0.0, 0
        return interval

    def _interval(self, state: RunState, *, rate: float, batch: int) -> Interval:
        sequence = self._config.model.sequence
        speed = self._samples / self._seconds
        tflops = speed * self._teraflop_per_sample(recompute=self._config.recompute)
        model_tflops = speed * self._teraflop_per_sample(recompute=False)
        return Interval(
            step=state.step,
            steps=self._config.steps,
            consumed_samples=state.consumed_samples,
            consumed_tokens=state.consumed_samples * sequence + state.earlier_tokens,
            step_s=self._seconds / len(self._losses),
            rate=rate,
            batch=batch,
            loss=sum(self._losses) / len(self._losses),
            grad_norm=math.nan if state.grad_norm is None else state.grad_norm,
            nans=sum(map(math.isnan, self._losses)),
            samples_per_s=speed,
            tokens_per_s=speed * sequence / self._world,
            tflops=tflops,
            model_tflops=model_tflops,
            mfu=model_tflops / self._peak if self._peak else None,
        )

    def _teraflop_per_sample(self, *, recompute: bool) -> float:
        """Return the operations of one GPU per sample, in 10¹²."""
        operations = step_flops(self._config.model, batch=1, recompute=recompute)
        return operations / self._world / 1e12
