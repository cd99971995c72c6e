"""Convert the time of a step to TFLOP/s, utilisation, days and GPU hours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev

from opsctl.calc.argument_checks import negative, not_positive, refuse
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.layer_work import forward_flops


def estimated_tflops(
    *, billions: float, sequence: int, batch: int, seconds: float, gpus: int, recompute: bool = True
) -> float:
    """Return the TFLOP/s per GPU: size·8·s·B / (t·n·1000), 6 without recomputation (book, "Calculating TFLOPS").

    The formula omits attention and the output layer, and reports 3-4 % less than `tflops`.
    """
    return billions * passes(recompute=recompute) * 2 * sequence * batch / (seconds * gpus * 1e3)


def passes(*, recompute: bool) -> int:
    """Return a step's work in forward passes: backward counts as two, recomputation as one (book, same section)."""
    return 4 if recompute else 3


def step_tflop(shape: ModelShape, *, batch: int, gpus: int, recompute: bool = True) -> float:
    """Return the work of a step per GPU, in TFLOP. The masked half of the attention matrix counts.

    For a GPT: Narayanan et al. 2021, section 5.1, eq. 3. For others, the same count over their own matrices.
    """
    layers, output = forward_flops(shape)
    total = batch * shape.sequence * (passes(recompute=recompute) * layers + passes(recompute=False) * output)
    return total / gpus / 1e12


def tflops(shape: ModelShape, *, batch: int, seconds: float, gpus: int, recompute: bool = True) -> float:
    """Return the TFLOP/s per GPU, as Megatron-DeepSpeed logs them since the correction of its formula."""
    refuse("throughput", not_positive(batch=batch, seconds=seconds, gpus=gpus))
    return step_tflop(shape, batch=batch, gpus=gpus, recompute=recompute) / seconds


def seconds_per_step(shape: ModelShape, *, batch: int, tflops: float, gpus: int, recompute: bool = True) -> float:
    """Return the seconds of a step at the given TFLOP/s per GPU."""
    refuse("throughput", not_positive(batch=batch, tflops=tflops, gpus=gpus))
    return step_tflop(shape, batch=batch, gpus=gpus, recompute=recompute) / tflops


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Shares of the peak: the model's work (MFU), and all work including recomputation (HFU)."""

    mfu: float
    hfu: float


def utilisation(
    shape: ModelShape, *, batch: int, seconds: float, gpus: int, peak: float, recompute: bool
) -> Utilisation:
    """Return MFU, which counts 3 passes, and HFU, which counts all passes (book, "TFLOPS as a performance metric")."""
    refuse("utilisation", not_positive(peak=peak))
    model = tflops(shape, batch=batch, seconds=seconds, gpus=gpus, recompute=False)
    hardware = tflops(shape, batch=batch, seconds=seconds, gpus=gpus, recompute=recompute)
    return Utilisation(mfu=model / peak, hfu=hardware / peak)


def training_days(
    *, billions: float, tokens_billions: float, gpus: int, tflops: float, recompute: bool = True
) -> float:
    """Return the days: 8·T·P / (n·X), 6 without recomputation (prequel of tr11, "Train time estimation")."""
    return gpu_hours(billions=billions, tokens_billions=tokens_billions, tflops=tflops, recompute=recompute) / gpus / 24


def gpu_hours(*, billions: float, tokens_billions: float, tflops: float, recompute: bool = True) -> float:
    """Return 8·T·P / X in hours of one GPU (prequel of tr11, "Allocated hours sufficiency check")."""
    refuse("training", not_positive(billions=billions, tokens_billions=tokens_billions, tflops=tflops))
    return 2 * passes(recompute=recompute) * tokens_billions * billions * 1e6 / tflops / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Eta:
    """Seconds to the last step: the likely time, and bounds that hold in 8 of 10 cases."""

    training: float
    """The part spent in steps."""
    likely: float
    early: float
    late: float
    attempts: int
    """Attempts still to start, without the running attempt."""


def time_left(
    *,
    steps: int,
    step_s: float,
    attempt_s: float = math.inf,
    start_up_s: float = 0.0,
    waits_s: Sequence[float] = (),
    running_s: float | None = None,
) -> Eta:
    """Return the wall-clock time of `steps` steps, with a start-up and a wait before every new attempt.

    `running_s` is the time left of the running attempt, 0 without one; by default `attempt_s`. Waits are assumed
    independent: the sum of n waits spreads by √n times the spread of a single wait.
    """
    problems = [*negative(steps=steps, start_up_s=start_up_s), *not_positive(step_s=step_s)]
    if not attempt_s > start_up_s:
        problems.append(f"a task of {attempt_s:g} s ends before its start-up of {start_up_s:g} s does")
    refuse("time left", problems)
    training = steps * step_s
    attempts = _count_attempts(training, attempt_s - start_up_s, running_s)
    fixed = training + attempts * start_up_s
    if not (waits_s and attempts):
        return Eta(training=training, likely=fixed, early=fixed, late=fixed, attempts=attempts)
    spread = NormalDist().inv_cdf(0.9) * pstdev(waits_s) * math.sqrt(attempts)
    waiting = attempts * fmean(waits_s)
    early = fixed + max(attempts * min(waits_s), waiting - spread)
    return Eta(training=training, likely=fixed + waiting, early=early, late=fixed + waiting + spread, attempts=attempts)


def _count_attempts(training: float, usable_s: float, running_s: float | None) -> int:
    """Return the number of attempts still to start. Every attempt trains for `usable_s`."""
    rest = training - (usable_s if running_s is None else running_s)
    if rest <= 0:
        return 0
    return math.ceil(rest / usable_s) if math.isfinite(usable_s) else 1
