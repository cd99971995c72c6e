"""The base class of all config tables; the tables of data, batches, optimizer, evaluation, logs and limits."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from opsctl.trainer.sample_order import check_range

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=1e8)]
Share = Annotated[float, Field(ge=0, lt=1)]
Percent = Annotated[float, Field(gt=0, le=100)]
SampleRange = Annotated[str, AfterValidator(check_range)]
_PREFIX = (
    "Path of the corpus without `.bin` and `.idx`, absolute, or relative to TRAIN.toml; if nothing is there, and "
    "always for a trainer without opsctl, relative to the working directory."
)
CorpusPrefix = Annotated[str, Field(description=_PREFIX)]


class ConfigTable(BaseModel):
    """A table of the config: unknown keys, converted types and infinite numbers are refused; instances are frozen."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def refuse(problems: Sequence[str]) -> None:
    """Raise ValueError with all problems, if there are any."""
    if problems:
        raise ValueError("; ".join(problems))


class CorpusConfig(ConfigTable):
    """One corpus of a blend."""

    prefix: CorpusPrefix
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Share of this corpus in the samples, relative to the sum of all weights."""


class StageConfig(ConfigTable):
    """A later stage of the data: from a sample on, another blend, as for annealing on better text."""

    from_sample: Count
    """Sample, counted from 0 in the order of training, from which this blend replaces the one before."""
    blend: Annotated[list[CorpusConfig], Field(min_length=1)]
    """The corpora of this stage. A corpus of an earlier stage goes on where it stopped, without a repetition."""


class DataConfig(ConfigTable):
    """The corpora, in Megatron's indexed format."""

    prefix: CorpusPrefix = "data/corpus"
    blend: list[CorpusConfig] = []
    """Several corpora mixed by weight, instead of `prefix`; exact to two samples at any weight."""
    stages: list[StageConfig] = []
    """Blends of later stages, in the order of their `from_sample`; evaluation keeps the corpora of the first."""
    held_out: Share = 0.0
    """Share of every corpus, taken from its end, that is evaluated on and never trained on."""
    separate_documents: bool = False
    """Let no token attend to another document, and begin positions anew with every document. Attention is computed for
    each document alone, on a GPU with `compile` by flex_attention: memory grows with the documents, and not with
    sequence squared."""
    skip_samples: list[SampleRange] = []
    """Ranges `A-B` of samples to skip, counted from 0 in the order of training, such as those of a loss spike."""

    @model_validator(mode="after")
    def _stages_begin_in_order(self) -> Self:
        starts = [stage.from_sample for stage in self.stages]
        if starts != sorted(set(starts)):
            raise ValueError(f"stages begin at the samples {starts}: every stage must begin after the one before")
        return self

    def blends(self) -> list[tuple[int, dict[str, float]]]:
        """Return, for every stage, its first sample and the weight of every corpus by prefix."""
        first = self.blend or [CorpusConfig(prefix=self.prefix)]
        stages = [(0, first), *((stage.from_sample, stage.blend) for stage in self.stages)]
        return [(start, _sum_weights(blend)) for start, blend in stages]

    def corpora(self) -> list[str]:
        """Return the prefixes of the corpora of all stages, each once, in the order of their first appearance."""
        return list(dict.fromkeys(chain.from_iterable(weights for _, weights in self.blends())))

    def skipped(self) -> list[range]:
        """Return the ranges of skipped samples, sorted and merged."""
        ends = sorted(tuple(map(int, text.split("-"))) for text in self.skip_samples)
        merged: list[range] = []
        for first, last in ends:
            if merged and first <= merged[-1].stop:
                merged[-1] = range(merged[-1].start, max(merged[-1].stop, last + 1))
            else:
                merged.append(range(first, last + 1))
        return merged


def _sum_weights(blend: Sequence[CorpusConfig]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for corpus in blend:
        weights[corpus.prefix] = weights.get(corpus.prefix, 0.0) + corpus.weight
    return weights


class BatchConfig(ConfigTable):
    """Numbers of samples in a micro-batch and in a step."""

    micro_batch: Count = 2
    """Samples that a rank processes at a time."""
    global_batch: Count = 16
    """Samples of one step over all ranks; a multiple of micro_batch x data-parallel ranks."""
    rampup: Annotated[list[Count], Field(min_length=3, max_length=3)] | None = None
    """[start, increment, samples]: the batch grows from `start` samples by `increment` to global_batch, in equal parts
    over the first `samples` samples, as Megatron's ramp-up does."""

    @model_validator(mode="after")
    def _reaches_the_full_batch(self) -> Self:
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

    @property
    def _ramp(self) -> tuple[int, int, int]:
        start, increment, samples = self.rampup or (self.global_batch, 1, 0)
        return start, increment, samples

    def sizes(self) -> list[int]:
        """Return all sizes of the batch, smallest first."""
        start, increment, _ = self._ramp
        return list(range(start, self.global_batch + 1, increment))

    def at(self, consumed: int) -> int:
        """Return the batch size of the step that begins after `consumed` samples."""
        start, increment, samples = self._ramp
        increments = len(self.sizes()) - 1
        if consumed > samples or increments == 0:
            return self.global_batch
        return start + consumed * increments // samples * increment

    def consumed(self, steps: int) -> int:
        """Return the samples that the first `steps` steps consume."""
        consumed, (*growing, full) = 0, self.sizes()
        for number, size in enumerate(growing, start=1):
            ends = -(-self._ramp[2] * number // len(growing))  # the first sample count with the next size
            here = min(steps, max(0, -(-(ends - consumed) // size)))
            consumed, steps = consumed + here * size, steps - here
        return consumed + steps * full


class OptimizerConfig(ConfigTable):
    """AdamW and the schedule of its learning rate, in samples."""

    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate after the warm-up."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at the end of the decay."""
    lr_scale: Annotated[float, Field(gt=0)] = 1.0
    """Factor of every learning rate of the schedule, as after a rollback; may change between two attempts."""
    warmup_samples: Annotated[int, Field(ge=0)] = 0
    """Samples over which the learning rate rises linearly from 0."""
    decay: Literal["cosine", "cosine-restarts", "linear", "wsd", "inverse-square-root", "constant"] = "cosine"
    """Shape of the learning rate after the warm-up; wsd keeps `lr` and falls linearly over the last `anneal_samples`,
    inverse-square-root is lr x sqrt(warmup_samples / samples)."""
    decay_samples: Count | None = None
    """Samples from the start of the run until `min_lr` is reached; the whole run if absent."""
    anneal_samples: Count | None = None
    """Samples of the decay at the end of wsd."""
    periods: Count | None = None
    """Periods of cosine-restarts, all of the same length."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """AdamW's weight decay; not applied to biases and norms."""
    beta1: Share = 0.9
    """Decay of the running mean of gradients."""
    beta2: Share = 0.95
    """Decay of the running mean of squared gradients."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW's epsilon, added to the denominator."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest norm of the gradient over all ranks; 0 does not clip."""

    @model_validator(mode="after")
    def _rates_fall(self) -> Self:
        problems = []
        if self.min_lr > self.lr:
            problems.append(f"min_lr = {self.min_lr:g} is above lr = {self.lr:g}")
        if self.decay_samples is not None and self.decay_samples <= self.warmup_samples:
            problems.append(f"decay_samples = {self.decay_samples} ends before warmup_samples = {self.warmup_samples}")
        refuse([*problems, *self._keys_of_other_decays()])
        return self

    def _keys_of_other_decays(self) -> Iterator[str]:
        for key, decay in (("anneal_samples", "wsd"), ("periods", "cosine-restarts")):
            value = getattr(self, key)
            if self.decay == decay and value is None:
                yield f"decay = {decay} needs {key}"
            if self.decay != decay and value is not None:
                yield f"{key} = {value} has no meaning with decay = {self.decay}, only with {decay}"
        if self.decay == "inverse-square-root" and not self.warmup_samples:
            yield "decay = inverse-square-root needs warmup_samples, from which it falls"


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate over samples: linear over the warm-up, then the decay of `optimizer` down to its min_lr."""

    optimizer: OptimizerConfig
    end: int
    """Samples at which min_lr is reached; without meaning for the decays constant and inverse-square-root."""

    def at(self, samples: int) -> float:
        """Return the rate of the step that ends at `samples` consumed samples."""
        return self.optimizer.lr_scale * self._unscaled(samples)

    def _unscaled(self, samples: int) -> float:
        peak, least, warmup = self.optimizer.lr, self.optimizer.min_lr, self.optimizer.warmup_samples
        if samples < warmup:
            return peak * samples / warmup
        if self.optimizer.decay == "inverse-square-root":  # Vaswani et al., arXiv 1706.03762
            return max(least, peak * math.sqrt(warmup / samples))
        return least + (peak - least) * self._height(samples)

    def _height(self, samples: int) -> float:
        """Return the height of the rate between min_lr (0) and lr (1)."""
        warmup = self.optimizer.warmup_samples
        done = min(1.0, (samples - warmup) / max(1, self.end - warmup))
        match self.optimizer.decay:
            case "cosine":  # Loshchilov and Hutter, arXiv 1608.03983, without restarts
                return _half_cosine(done)
            case "cosine-restarts":  # the same paper, T_mult = 1
                return _half_cosine(done * (self.optimizer.periods or 1) % 1 if done < 1 else 1.0)
            case "linear":
                return 1 - done
            case "wsd":  # warm-up, stable, decay: MiniCPM, arXiv 2404.06395
                return min(1.0, max(0.0, (self.end - samples) / (self.optimizer.anneal_samples or 1)))
            case _:
                return 1.0


def _half_cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


def is_due(step: int, every: int) -> bool:
    """Return whether a task that runs every `every` steps is due after `step`; 0 means never."""
    return every > 0 and step > 0 and step % every == 0


class EvaluationSetConfig(ConfigTable):
    """One more corpus to evaluate on."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=40)]
    """Name in the log and in the metrics."""
    prefix: CorpusPrefix


class EvaluationConfig(ConfigTable):
    """Evaluation of the loss on held-out samples (`data.held_out`) and on other corpora."""

    every: Annotated[int, Field(ge=0)] = 0
    """Steps between two evaluations; 0 never evaluates."""
    batches: Count = 10
    """Batches of one evaluation, with global_batch samples per batch; every evaluation reads the same samples."""
    sets: list[EvaluationSetConfig] = []
    """Corpora that are evaluated one after the other, each with a loss of its own, besides the held-out samples."""

    @field_validator("sets")
    @classmethod
    def _own_names(cls, sets: list[EvaluationSetConfig]) -> list[EvaluationSetConfig]:
        names = [table.name for table in sets]
        if len(names) != len(set(names)):
            raise ValueError(f"two sets have one name: {', '.join(sorted(names))}")
        return sets


class SpikeConfig(ConfigTable):
    """When a loss counts as a spike, and which checkpoints of spikes to keep."""

    deviations: Annotated[float, Field(ge=0)] = 6.0
    """Standard deviations above the mean of the last `window` losses that make a spike; 0 disables the detection."""
    window: Annotated[int, Field(ge=10)] = 100
    """Number of earlier steps that a loss is compared with; no spike is detected before."""
    save: bool = True
    """Save a checkpoint after a spike and exempt it from pruning."""
    keep: Count = 3
    """Number of newest spikes whose checkpoints stay; every one takes the disk space of a checkpoint."""


class LogConfig(ConfigTable):
    """The log, heartbeats and metrics."""

    every: Count = 1
    """Steps between two log lines."""
    heartbeat_s: Seconds = 5.0
    """Shortest time between two heartbeats of one phase."""
    directory: str | None = None
    """Directory of metrics.jsonl (one JSON object per log line) and of TensorBoard's events; if absent, `metrics` in
    the run directory; without a run directory, no metrics are written."""
    tensorboard: bool = False
    """Write TensorBoard's events."""
    wandb: bool = False
    """Log to Weights & Biases (`pip install wandb`), by its WANDB_* variables; all attempts continue one run."""
    peak_tflops: Annotated[float, Field(gt=0)] | None = None
    """Peak TFLOPS of one GPU, for the MFU; if absent, looked up by the GPU's name."""


class LimitsConfig(ConfigTable):
    """Longest duration of every phase before the trainer counts as hung; margin before the job's end; memory limits."""

    init_s: Seconds = 900.0
    """Longest time from the start to the first step."""
    step_s: Seconds | None = None
    """Longest time between two heartbeats while training; if absent, 20 times the slowest step, at least 120 s."""
    save_s: Seconds = 1800.0
    """Longest time of one save."""
    exit_s: Seconds = 120.0
    """Longest time from the last save to the end of the process."""
    margin_s: Annotated[float, Field(ge=0)] = 5.0
    """Margin before the job's end, in addition to 2 x (slowest step + last save)."""
    host_memory_percent: Percent | None = None
    """Save and stop when a node's memory, or the job's limit on it, is fuller than this; if absent, never."""
    gpu_memory_percent: Percent | None = None
    """Save and stop when a GPU's memory is fuller than this, without the allocator's cache; if absent, never."""
