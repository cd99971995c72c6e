"""How long gradients and weights are on the wire, against how long the step computes."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.calc.argument_checks import not_positive, refuse
from opsctl.calc.throughput import passes
from opsctl.errors import InputError

TRANSMISSIONS: dict[int, int] = {0: 2, 1: 2, 2: 2, 3: 3}
"""Times that the weights' size is sent in a step, by ZeRO stage (book, "Inter-node speed requirements to use ZeRO").

An all-reduce is a reduce-scatter and an all-gather. ZeRO-1 and -2 do the same two; ZeRO-3 gathers twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Seconds of one step, and what decides."""

    sent_gb: float
    communication_s: float
    compute_s: float
    balance_gb_s: float
    """The bandwidth at which communication takes as long as compute: below it the network decides."""

    @property
    def network_bound(self) -> bool:
        return self.communication_s > self.compute_s


def sent_gb(*, billions: float, zero: int, bytes_each: float = 2.0, accumulation: int = 1) -> float:
    """GB in a step. ZeRO-2 reduces and ZeRO-3 does all of it once per accumulation step (book, same place)."""
    if zero not in TRANSMISSIONS:
        raise InputError(f"zero is {zero}, needs to be 0, 1, 2 or 3")
    refuse("network", not_positive(billions=billions, bytes_each=bytes_each, accumulation=accumulation))
    times = {2: accumulation + 1, 3: 3 * accumulation}.get(zero, TRANSMISSIONS[zero])
    return times * bytes_each * billions


def compute_s(*, billions: float, sequence: int, batch: int, gpus: int, tflops: float, recompute: bool = True) -> float:
    """Seconds of a step without communication, at the TFLOP/s that one GPU reaches alone (book, same place).

    The book's formula has bytes per parameter where the two operations of a multiply-add belong; for bf16 both are 2.
    """
    refuse("network", not_positive(sequence=sequence, batch=batch, gpus=gpus, tflops=tflops))
    return passes(recompute=recompute) * 2 * billions * sequence * batch / (gpus * 1e3 * tflops)


def traffic(
    *, billions: float, zero: int, gb_s: float, sequence: int, batch: int, gpus: int, tflops: float,
    bytes_each: float = 2.0, accumulation: int = 1, recompute: bool = True,
) -> Traffic:  # fmt: skip
    """Communication against compute, for the data rate that a benchmark of the same payload shows."""
    refuse("network", not_positive(gb_s=gb_s))
    sent = sent_gb(billions=billions, zero=zero, bytes_each=bytes_each, accumulation=accumulation)
    computing = compute_s(
        billions=billions, sequence=sequence, batch=batch, gpus=gpus, tflops=tflops, recompute=recompute
    )
    return Traffic(sent_gb=sent, communication_s=sent / gb_s, compute_s=computing, balance_gb_s=sent / computing)
