"""The error bars of predictions, from the rows on which the model was fitted."""

from dataclasses import dataclass

from opsctl.base.tables import read_package_table
from opsctl.calc.accelerators import Accelerator
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.parallel_layout import Topology

_BARS = read_package_table("calc/error_bars.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBar:
    """Factors on a prediction between which 8 of 10 measurements lie."""

    low: float
    high: float


MEMORY_LIMITS: dict[str, dict[str, float]] = _BARS["fits"]
"""By kind of trainer: where an estimate fits in half of the cases, and how wide the estimates spread."""
TOTAL_BAR = ErrorBar(**_BARS["totals"])
"""Of the days and GPU-hours of a whole run that no measured step has calibrated."""
CALIBRATED_BAR = ErrorBar(**_BARS["calibrated"])
"""Once one measured step of the same model has calibrated the predictions."""
OTHER_BAR = ErrorBar(**_BARS["other"])
"""Once a measured step of another model on the same GPUs and trainer has."""


def step_bar(shape: ModelShape, gpu: Accelerator, topology: Topology) -> ErrorBar:
    """Return the bar of a step's time: by generation; wider for mixtures of experts, ZeRO-3 and AMD's accelerators."""
    bar = _BARS["generations"][gpu.generation]
    if shape.experts:
        bar = _BARS["experts"]
    elif topology.zero == 3 and gpu.generation != "cdna":
        bar = _BARS["sharded"]
    return ErrorBar(**bar)
