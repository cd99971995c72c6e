"""The `[trainer]` table of a train's TOML, and the `trainer.json` that it is frozen into.

Free of torch: whoever launches validates with it. Lengths are in tokens, batches in samples (sequences), times in
seconds. What needs the number of processes as well is checked by `layout.check_layout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from opsctl.trainer import schedule
from opsctl.trainer.config_tables import (
    BatchConfig,
    ConfigTable,
    CorpusConfig,
    Count,
    DataConfig,
    EvaluationConfig,
    LimitsConfig,
    LogConfig,
    Seconds,
    Share,
    SpikeConfig,
)


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise ValueError("; ".join(problems))


class ModelConfig(ConfigTable):
    """A GPT: pre-norm blocks, output tied to the token embedding."""

    family: Literal["gpt2", "bloom"] = "gpt2"
    """gpt2: learnt positions. bloom: a norm behind the embedding, and attention that fades with distance (ALiBi)."""
    layers: Count = 4
    """Transformer blocks."""
    hidden: Count = 128
    """Width of the residual stream."""
    heads: Count = 4
    """Attention heads of each block; divides `hidden`."""
    sequence: Count = 128
    """Tokens of one sample, and positions that a gpt2 knows."""
    vocabulary: Count = 264
    """Rows of the token embedding: 256 bytes and the end of a document, rounded up to a multiple of 8."""
    dropout: Share = 0.0
    """Chance of each activation to be dropped, after the embedding, in attention and after each half of a block."""
    init_std: Annotated[float, Field(gt=0)] | None = None
    """Standard deviation of initial weights; √(1/(3·hidden)) if absent."""

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelConfig:
        if self.hidden % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide hidden = {self.hidden}")
        return self


class ParallelConfig(ConfigTable):
    """How the model is spread; what is left of the processes is data parallel."""

    pipeline: Count = 1
    """Stages that the layers are cut into."""
    tensor: Count = 1
    """Ranks that each matrix of a stage is cut over; divides `heads` and `vocabulary`."""
    zero_stage: Literal[0, 1] = 1
    """1: each data-parallel rank keeps its share of the optimizer's state. 0, each keeps all, is refused with why."""
    balance: Literal["blocks-and-embeddings", "blocks"] = "blocks-and-embeddings"
    """What is counted out evenly over the stages; the first counts embedding and output as a block each."""
    timeout_s: Seconds = 600.0
    """How long a rank waits for the others before it gives up."""


class OptimizerConfig(ConfigTable):
    """AdamW, and its learning rate over samples."""

    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate after the warm-up."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at the end of the decay."""
    warmup_samples: Annotated[int, Field(ge=0)] = 0
    """Samples over which the rate rises linearly from 0."""
    decay: Literal["cosine", "constant"] = "cosine"
    """How the rate falls after the warm-up."""
    decay_samples: Count | None = None
    """Samples, from the start, at which `min_lr` is reached; the whole run if absent."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Not applied to biases and norms."""
    beta1: Share = 0.9
    """Decay of the running mean of gradients."""
    beta2: Share = 0.95
    """Decay of the running mean of squared gradients."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the denominator."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest norm of the gradient over all ranks; 0 does not clip."""

    @model_validator(mode="after")
    def _rates_fall(self) -> OptimizerConfig:
        problems = []
        if self.min_lr > self.lr:
            problems.append(f"min_lr = {self.min_lr:g} is above lr = {self.lr:g}")
        if self.decay_samples is not None and self.decay_samples <= self.warmup_samples:
            problems.append(f"decay_samples = {self.decay_samples} ends before warmup_samples = {self.warmup_samples}")
        _refuse(problems)
        return self


class CheckpointConfig(ConfigTable):
    """When and where the state is saved."""

    directory: str = "checkpoints"
    """Where checkpoints lie; the environment's TRAIN_CHECKPOINT_DIR goes before it."""
    every: Annotated[int, Field(ge=0)] = 1000
    """Steps between two saves; 0 saves only at the end and on request."""
    keep_last: Annotated[int, Field(ge=0)] = 0
    """Newest checkpoints that are kept, at least 2; 0 keeps them all."""
    keep_every: Annotated[int, Field(ge=0)] = 0
    """Checkpoints whose step is a multiple of this are kept whatever their age; 0 keeps none for that."""
    background: bool = True
    """Whether to copy the state to host memory and write it while training goes on; takes that memory twice."""

    @model_validator(mode="after")
    def _keeps_a_spare(self) -> CheckpointConfig:
        if self.keep_last == 1:
            raise ValueError("keep_last = 1 leaves nothing to fall back on if that one is damaged; use 2, or 0 for all")
        return self


class TrainerConfig(ConfigTable):
    """All that a training run is, apart from where it runs."""

    steps: Count
    """Step at which the run is finished."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] | None = None
    """Of the initial weights, of the order of samples and of dropout; drawn, logged and kept with the checkpoints if
    absent."""
    deterministic: bool = False
    """Whether the GPU may only use kernels that give the same bits each time; slower."""
    trace: list[str] = Field(default_factory=list)
    """Packages whose calls each rank logs, one line each; as `--trace` does."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """bf16: weights and activations in bf16, gradients summed and weights updated in fp32."""
    recompute: bool = False
    """Run each block forward again when its gradient is due, instead of keeping what it computed: less memory."""
    threads: Count | None = None
    """CPU threads of each rank; OMP_NUM_THREADS or the cores that it may use if absent."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    parallel: ParallelConfig = ParallelConfig()
    batch: BatchConfig = BatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    spike: SpikeConfig = SpikeConfig()
    log: LogConfig = LogConfig()
    limits: LimitsConfig = LimitsConfig()

    @model_validator(mode="after")
    def _tables_agree(self) -> TrainerConfig:
        _refuse([*self._wrong_without_zero(), *self._endless_warmup(), *self._nothing_held_out()])
        return self

    def _wrong_without_zero(self) -> Iterator[str]:
        if self.parallel.zero_stage:
            return
        if self.precision == "bf16":
            yield (
                "precision = bf16 with zero_stage = 0 cannot sum gradients in fp32: DeepSpeed does so only where it "
                "shares the optimizer's state; use zero_stage = 1"
            )
        else:
            yield (
                "precision = fp32 with zero_stage = 0 leaves the later stages out of the gradient's norm and clips "
                "wrongly, and takes a step with gradients that are not numbers; use zero_stage = 1"
            )

    def _endless_warmup(self) -> Iterator[str]:
        samples, optimizer = self.samples(), self.optimizer
        falls = optimizer.decay == "cosine" and optimizer.decay_samples is None
        if falls and optimizer.warmup_samples >= samples:
            yield (
                f"warmup_samples = {optimizer.warmup_samples} takes the whole run of {samples} samples "
                f"({self.steps} steps of {self.batch.global_batch})"
            )

    def _nothing_held_out(self) -> Iterator[str]:
        if self.evaluation.every and not self.data.held_out:
            yield f"evaluation.every = {self.evaluation.every} has nothing to read: data.held_out is 0"

    def samples(self) -> int:
        """Samples that all steps take, ramp-up included."""
        return self.batch.ramp().consumed(self.steps)

    def rate(self) -> schedule.Rate:
        """The learning rate's schedule, in samples."""
        optimizer = self.optimizer
        return schedule.Rate(
            peak=optimizer.lr,
            least=optimizer.min_lr,
            warmup=optimizer.warmup_samples,
            end=(optimizer.decay_samples or self.samples()) if optimizer.decay == "cosine" else None,
        )


def read(path: Path, *, skip_samples: Sequence[str] = ()) -> TrainerConfig:
    """The config frozen at `path`, with more ranges of samples to pass over.

    Raises OSError, or pydantic's ValidationError with every problem in it.
    """
    config = TrainerConfig.model_validate_json(path.read_text())
    skipped = [*config.data.skip_samples, *skip_samples]
    data = DataConfig.model_validate(config.data.model_dump() | {"skip_samples": skipped})
    return config.model_copy(update={"data": data})


def describe_errors(error: ValidationError) -> str:
    """Every problem of a config, in one line."""
    return "; ".join(
        _told(error_details["loc"], error_details["type"], error_details["msg"]) for error_details in error.errors()
    )


def _told(place: tuple[int | str, ...], kind: str, message: str) -> str:
    where = ".".join(map(str, place)) or "config"
    if kind != "extra_forbidden":
        return f"{where}: {message.removeprefix('Value error, ')}"
    known = _known(place[:-1])
    near = get_close_matches(str(place[-1]), known, 1)
    return f"{where}: unknown key; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")


def _known(place: Sequence[int | str]) -> list[str]:
    """The keys of the table at `place`."""
    model: type[BaseModel] = CorpusConfig if "blend" in place else TrainerConfig
    for key in () if "blend" in place else place:
        field = model.model_fields[str(key)].annotation
        model = field if isinstance(field, type) and issubclass(field, BaseModel) else model
    return sorted(model.model_fields)
