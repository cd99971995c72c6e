"""What every table of the config is made of, and the tables of what a run reads, tells and may use."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from opsctl.trainer.schedule import Ramp

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=1e8)]
Share = Annotated[float, Field(ge=0, lt=1)]
Percent = Annotated[float, Field(gt=0, le=100)]

_RANGE = re.compile(r"(\d+)-(\d+)")


class ConfigTable(BaseModel):
    """A table of the config: no unknown keys, no guessing at types, no endless numbers, never changed."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class CorpusConfig(ConfigTable):
    """One corpus of a blend."""

    prefix: str
    """Path of the corpus without `.bin` and `.idx`, absolute or from the working directory."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Its part of all samples, beside the other weights; they need not add up to 1."""


class DataConfig(ConfigTable):
    """What is read: corpora in Megatron's indexed format."""

    prefix: str = "data/corpus"
    """Path of the corpus without `.bin` and `.idx`, absolute or from the working directory."""
    blend: list[CorpusConfig] = []
    """Several corpora mixed by weight, instead of `prefix`."""
    held_out: Share = 0.0
    """Share of each corpus, its end, that is never trained on and that evaluation reads."""
    skip_samples: list[str] = []
    """`A-B`, counted from 0 in the order of training: samples that are passed over, such as those of a loss spike."""

    @field_validator("skip_samples")
    @classmethod
    def _ranges(cls, given: list[str]) -> list[str]:
        for text in given:
            match = _RANGE.fullmatch(text)
            if not match or int(match[1]) > int(match[2]):
                raise ValueError(f"{text!r} is not a range of samples A-B with A up to B")
        return given

    def corpora(self) -> list[CorpusConfig]:
        """What is mixed; one corpus where there is no blend."""
        return self.blend or [CorpusConfig(prefix=self.prefix)]

    def skipped(self) -> list[range]:
        """The samples that are passed over, in order, without overlaps."""
        ends = sorted(tuple(map(int, text.split("-"))) for text in self.skip_samples)
        merged: list[range] = []
        for first, last in ends:
            if merged and first <= merged[-1].stop:
                merged[-1] = range(merged[-1].start, max(merged[-1].stop, last + 1))
            else:
                merged.append(range(first, last + 1))
        return merged


class BatchConfig(ConfigTable):
    """Samples of a step."""

    micro_batch: Count = 2
    """Samples that one rank takes through its stage at a time."""
    global_batch: Count = 16
    """Samples of one step over all ranks; a multiple of micro_batch x data-parallel ranks."""
    rampup: Annotated[list[Count], Field(min_length=3, max_length=3)] | None = None
    """[start, increment, samples]: the step grows from `start` samples by `increment` to global_batch, in equal parts
    over the first `samples` samples; Megatron's ramp-up."""

    @model_validator(mode="after")
    def _reaches_the_full_batch(self) -> BatchConfig:
        if self.rampup is None:
            return self
        start, increment, samples = self.rampup
        if start > self.global_batch or (self.global_batch - start) % increment:
            raise ValueError(
                f"rampup from {start} by {increment} does not reach global_batch = {self.global_batch} exactly"
            )
        if samples < (self.global_batch - start) // increment:
            raise ValueError(
                f"rampup over {samples} samples is shorter than its {(self.global_batch - start) // increment} steps up"
            )
        return self

    def ramp(self) -> Ramp:
        """The size of each step, by consumed samples."""
        start, increment, samples = self.rampup or (self.global_batch, 1, 0)
        return Ramp(full=self.global_batch, start=start, increment=increment, samples=samples)


class EvaluationConfig(ConfigTable):
    """The loss on what is held out (`data.held_out`)."""

    every: Annotated[int, Field(ge=0)] = 0
    """Steps between two evaluations; 0 never evaluates."""
    batches: Count = 10
    """Batches of global_batch samples each; always the same ones, so that evaluations can be compared."""


class SpikeConfig(ConfigTable):
    """When a loss counts as a spike."""

    deviations: Annotated[float, Field(ge=0)] = 6.0
    """Standard deviations above the mean of the last `window` losses; 0 never tells."""
    window: Annotated[int, Field(ge=10)] = 100
    """Steps that a loss is compared with; until there are this many, none is a spike."""
    save: bool = True
    """Whether the state after a spike is saved, and kept for study when others are pruned."""
    keep: Count = 3
    """Spikes whose state is kept, the newest: each takes a checkpoint's room for good."""


class LogConfig(ConfigTable):
    """What is logged."""

    every: Count = 1
    """Steps between two log lines."""
    heartbeat_s: Seconds = 5.0
    """Least time between two heartbeats of one phase."""
    directory: str | None = None
    """Where metrics.jsonl, a JSON object for each log line, and TensorBoard's events go; `metrics` in the run's
    directory if absent, and nowhere without one."""
    tensorboard: bool = False
    """Whether TensorBoard's events are written."""
    peak_tflops: Annotated[float, Field(gt=0)] | None = None
    """What one GPU can do at most, for MFU; from the table of peaks by the GPU's name if absent."""


class LimitsConfig(ConfigTable):
    """The longest that each phase may take before it counts as hung; what is left free before the job's end; memory."""

    init_s: Seconds = 900.0
    """From start to the first step."""
    step_s: Seconds | None = None
    """Between two heartbeats while training; 20 of the slowest steps, at least 120 s, if absent."""
    save_s: Seconds = 1800.0
    """One save."""
    exit_s: Seconds = 120.0
    """From the last save to the end of the process."""
    margin_s: Annotated[float, Field(ge=0)] = 5.0
    """Kept free before the job's end, besides twice (slowest step + last save)."""
    host_memory_percent: Percent | None = None
    """Save and stop when the fullest node's memory, or the job's share of it, is fuller (0-100); never if absent."""
    gpu_memory_percent: Percent | None = None
    """The same for the fullest GPU; what the allocator merely caches is not counted."""
