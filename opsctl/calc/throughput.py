"""Convert the time of a step to TFLOP/s, utilisation, days and GPU hours; the traffic of a step."""

from dataclasses import dataclass

from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.layer_work import forward_flops


def passes(*, recompute: bool) -> int:
    """Return a step's work in forward passes: backward counts as two, recomputation as one (book, same section)."""
    return 4 if recompute else 3


def step_tflop(shape: ModelShape, *, batch: int, gpus: int, recompute: bool = True) -> float:
    """Return the work of a step per GPU, in TFLOP. The masked half of the attention matrix counts.

    Over the seconds of a step: the TFLOP/s that Megatron-DeepSpeed logs since the correction of its formula. For a GPT:
    Narayanan et al. 2021, section 5.1, eq. 3. For others, the same count over their own matrices.
    """
    layers, output = forward_flops(shape)
    total = batch * shape.sequence * (passes(recompute=recompute) * layers + passes(recompute=False) * output)
    return total / gpus / 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    step_s: float
    tflops: float
    """Of one GPU, all passes counted."""
    mfu: float | None
    """The model's work, 3 passes, as a share of the peak (book, "TFLOPS as a performance metric"); None without one."""
    hfu: float | None
    """All work including recomputation, as a share of the peak."""
    tokens_per_s: float


def speed(
    shape: ModelShape,
    *,
    gpus: int,
    batch: int,
    recompute: bool,
    seconds: float | None = None,
    tflops: float | None = None,
    peak: float | None = None,
) -> Speed:
    """Return the speed of a step, from its `seconds` or from the `tflops` of a GPU."""
    work, model_work = (step_tflop(shape, batch=batch, gpus=gpus, recompute=again) for again in (recompute, False))
    if seconds is None:
        assert tflops is not None
        seconds = work / tflops
    return Speed(
        step_s=seconds,
        tflops=work / seconds,
        mfu=model_work / seconds / peak if peak else None,
        hfu=work / seconds / peak if peak else None,
        tokens_per_s=batch * shape.sequence / seconds,
    )


def gpu_hours(*, billions: float, tokens_billions: float, tflops: float, recompute: bool = True) -> float:
    """Return 8·T·P / X in hours of one GPU (prequel of tr11, "Allocated hours sufficiency check")."""
    return 2 * passes(recompute=recompute) * tokens_billions * billions * 1e6 / tflops / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Communication and compute of one step."""

    sent_gb: float
    communication_s: float
    compute_s: float
    balance_gb_s: float
    """The bandwidth at which communication takes as long as compute. Below, the step is network-bound."""

    @property
    def network_bound(self) -> bool:
        return self.communication_s > self.compute_s


def traffic(
    *,
    billions: float,
    zero: int,
    gb_s: float,
    tflops: float,
    sequence: int,
    batch: int,
    gpus: int,
    recompute: bool = True,
    bytes_per_parameter: float = 2.0,
    accumulation: int = 1,
) -> Traffic:
    """Return communication and compute of a step (book, "Inter-node speed requirements to use ZeRO").

    `gb_s` is measured with the same payload, `tflops` those of a single GPU. An all-reduce sends twice. ZeRO-2 reduces
    in every accumulation step; ZeRO-3 sends all in each, and gathers twice. The book's formula has bytes per parameter
    in place of the two operations of a multiply-add; for bf16 both are 2.
    """
    times = {2: accumulation + 1, 3: 3 * accumulation}.get(zero, 2)
    sent = times * bytes_per_parameter * billions
    computing = passes(recompute=recompute) * 2 * billions * sequence * batch / (gpus * 1e3 * tflops)
    return Traffic(sent_gb=sent, communication_s=sent / gb_s, compute_s=computing, balance_gb_s=sent / computing)
