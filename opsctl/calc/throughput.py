"""Convert the time of a step to TFLOP/s, utilisation, days and GPU hours."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.calc.argument_checks import not_positive, refuse
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
