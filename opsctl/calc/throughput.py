"""From the time of a step to TFLOP/s, to utilisation, to days and money."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev

from opsctl.calc.argument_checks import negative, not_positive, refuse
from opsctl.calc.gpt_size import ModelShape
from opsctl.trainer import flops


def estimated_tflops(
    *, billions: float, sequence: int, batch: int, seconds: float, gpus: int, recompute: bool = True
) -> float:
    """TFLOP/s of each GPU: size·8·s·B / (t·n·1000), 6 without recomputation (book, "Calculating TFLOPS").

    It leaves out attention and the output layer, and so reports some 3-4 % less than `tflops`.
    """
    return billions * passes(recompute=recompute) * 2 * sequence * batch / (seconds * gpus * 1e3)


def passes(*, recompute: bool) -> int:
    """Forwards that a step amounts to: backward counts as two, recomputation as one more (book, same place)."""
    return 4 if recompute else 3


def step_tflop(shape: ModelShape, *, batch: int, gpus: int, recompute: bool = True) -> float:
    """The work of one step for each GPU in TFLOP (Narayanan et al. 2021, section 5.1, eq. 3)."""
    total = flops.step_flops(
        batch=batch, layers=shape.layers, hidden=shape.hidden, sequence=shape.sequence,
        vocabulary=shape.vocabulary, recompute=recompute,
    )  # fmt: skip
    return total / gpus / 1e12


def tflops(shape: ModelShape, *, batch: int, seconds: float, gpus: int, recompute: bool = True) -> float:
    """TFLOP/s of each GPU, as Megatron-DeepSpeed logs it since its formula was corrected."""
    refuse("throughput", not_positive(batch=batch, seconds=seconds, gpus=gpus))
    return step_tflop(shape, batch=batch, gpus=gpus, recompute=recompute) / seconds


def seconds_per_step(shape: ModelShape, *, batch: int, tflops: float, gpus: int, recompute: bool = True) -> float:
    """The way back from TFLOP/s."""
    refuse("throughput", not_positive(batch=batch, tflops=tflops, gpus=gpus))
    return step_tflop(shape, batch=batch, gpus=gpus, recompute=recompute) / tflops


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Shares of the peak: of what the model needs (MFU), and with what is computed twice (HFU)."""

    mfu: float
    hfu: float


def utilisation(
    shape: ModelShape, *, batch: int, seconds: float, gpus: int, peak: float, recompute: bool
) -> Utilisation:
    """MFU counts 3 passes, HFU what the hardware does (book, "TFLOPS as a performance metric")."""
    refuse("utilisation", not_positive(peak=peak))
    model = tflops(shape, batch=batch, seconds=seconds, gpus=gpus, recompute=False)
    hardware = tflops(shape, batch=batch, seconds=seconds, gpus=gpus, recompute=recompute)
    return Utilisation(mfu=model / peak, hfu=hardware / peak)


def training_days(
    *, billions: float, tokens_billions: float, gpus: int, tflops: float, recompute: bool = True
) -> float:
    """8·T·P / (n·X), 6 without recomputation (prequel of tr11, "Train time estimation")."""
    return gpu_hours(billions=billions, tokens_billions=tokens_billions, tflops=tflops, recompute=recompute) / gpus / 24


def gpu_hours(*, billions: float, tokens_billions: float, tflops: float, recompute: bool = True) -> float:
    """8·T·P / X in hours of one GPU (prequel of tr11, "Allocated hours sufficiency check")."""
    refuse("training", not_positive(billions=billions, tokens_billions=tokens_billions, tflops=tflops))
    return 2 * passes(recompute=recompute) * tokens_billions * billions * 1e6 / tflops / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Eta:
    """Seconds to the last step: as things go, and between what bounds in 8 of 10 cases."""

    training: float
    """Of this, in the trainer's steps."""
    likely: float
    early: float
    late: float
    attempts: int
    """Tasks that are still to start, the running one not counted."""


def time_left(
    *, steps: int, step_s: float, attempt_s: float = math.inf, start_up_s: float = 0.0, waits_s: Sequence[float] = (),
    running_s: float | None = None,
) -> Eta:  # fmt: skip
    """The wall-clock of the steps that are left, with a start-up and a wait like those seen before every new attempt.

    `running_s` is what the running attempt still has, 0 if none runs; as much as a new one by default. Waits are
    taken as
    independent: their sum over n attempts spreads by √n times the spread of one.
    """
    problems = [*negative(steps=steps, start_up_s=start_up_s), *not_positive(step_s=step_s)]
    if not attempt_s > start_up_s:
        problems.append(f"a task of {attempt_s:g} s ends before its start-up of {start_up_s:g} s does")
    refuse("time left", problems)
    training = steps * step_s
    attempts = _attempts(training, attempt_s - start_up_s, running_s)
    fixed = training + attempts * start_up_s
    if not (waits_s and attempts):
        return Eta(training=training, likely=fixed, early=fixed, late=fixed, attempts=attempts)
    spread = NormalDist().inv_cdf(0.9) * pstdev(waits_s) * math.sqrt(attempts)
    waiting = attempts * fmean(waits_s)
    early = fixed + max(attempts * min(waits_s), waiting - spread)
    return Eta(training=training, likely=fixed + waiting, early=early, late=fixed + waiting + spread, attempts=attempts)


def _attempts(training: float, each_s: float, running_s: float | None) -> int:
    """How many are still to start for so many seconds of training, if the running one still has `running_s`."""
    rest = training - (each_s if running_s is None else running_s)
    if rest <= 0:
        return 0
    return math.ceil(rest / each_s) if math.isfinite(each_s) else 1
