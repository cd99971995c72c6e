"""Communication time of gradients and weights, compared with the compute time of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opsctl.calc.throughput import passes

TRANSMISSIONS: dict[int, int] = {0: 2, 1: 2, 2: 2, 3: 3}
"""How often the weights' size is sent in a step, by ZeRO stage (book, "Inter-node speed requirements to use ZeRO").

An all-reduce is a reduce-scatter and an all-gather. ZeRO-1 and -2 do the same two; ZeRO-3 gathers twice."""


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


def sent_gb(*, billions: float, zero: int, bytes_per_parameter: float = 2.0, accumulation: int = 1) -> float:
    """Return the GB sent in a step. ZeRO-2 reduces per accumulation step, ZeRO-3 sends all (book, same section)."""
    times = {2: accumulation + 1, 3: 3 * accumulation}.get(zero, TRANSMISSIONS[zero])
    return times * bytes_per_parameter * billions


def compute_s(*, billions: float, sequence: int, batch: int, gpus: int, tflops: float, recompute: bool = True) -> float:
    """Return the seconds of a step without communication, at the TFLOP/s of a single GPU (book, same section).

    The book's formula has bytes per parameter in place of the two operations of a multiply-add; for bf16 both are 2.
    """
    return passes(recompute=recompute) * 2 * billions * sequence * batch / (gpus * 1e3 * tflops)


def traffic(
    *,
    billions: float,
    zero: int,
    gb_s: float,
    bytes_per_parameter: float = 2.0,
    accumulation: int = 1,
    **step: Any,
) -> Traffic:
    """Return communication and compute for the bandwidth measured with the same payload; `step` as in `compute_s`."""
    sent = sent_gb(billions=billions, zero=zero, bytes_per_parameter=bytes_per_parameter, accumulation=accumulation)
    computing = compute_s(billions=billions, **step)
    return Traffic(sent_gb=sent, communication_s=sent / gb_s, compute_s=computing, balance_gb_s=sent / computing)
