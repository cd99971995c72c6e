"""The `[trainer]` table of a TRAIN.toml, which `opsctl launch` freezes into trainer.json.

No import of torch: `opsctl launch` validates configs on login nodes. Lengths are in tokens, batches in samples
(sequences), times in seconds. `rank_layout.check_layout` checks the rules that depend on the number of processes.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from opsctl.trainer.config_tables import (
    BatchConfig,
    ConfigTable,
    Count,
    DataConfig,
    EvaluationConfig,
    LimitsConfig,
    LogConfig,
    OptimizerConfig,
    Rate,
    Seconds,
    SpikeConfig,
    refuse,
)
from opsctl.trainer.model_config import ModelConfig


class ParallelConfig(ConfigTable):
    """How the model is cut; data parallelism takes the remaining factor of the processes."""

    pipeline: Count = 1
    """Stages that the layers are cut into."""
    tensor: Count = 1
    """Ranks that the matrices of a stage are cut over; divides `heads` and `vocabulary`."""
    sequence_parallel: bool = False
    """Cut activations along the sequence where matrices are not cut, over the tensor ranks: all activations of a block
    are divided by `tensor`, which must divide `model.sequence`. Tensor ranks exchange a quarter more (llama: 3/8)."""
    zero_stage: Literal[1] = 1
    """1, and no other value: every data-parallel rank holds its share of the optimizer's state."""
    balance: Literal["blocks-and-embeddings", "blocks"] = "blocks-and-embeddings"
    """What is divided evenly over the stages; blocks-and-embeddings counts embedding and output as one block each."""
    blocks: list[Count] | None = None
    """Blocks of every stage, first to last, instead of an even division; the longest stage sets the pace."""
    timeout_s: Seconds = 600.0
    """Longest time that a rank waits for the other ranks before it fails."""

    @property
    def division(self) -> str:
        """The division of the layers into stages, as a checkpoint records it."""
        return "-".join(map(str, self.blocks)) if self.blocks else self.balance


class CheckpointConfig(ConfigTable):
    """When and where the trainer saves checkpoints."""

    directory: str = "checkpoints"
    """Directory of the checkpoints; the environment variable TRAIN_CHECKPOINT_DIR has precedence."""
    every: Annotated[int, Field(ge=0)] = 1000
    """Steps between two saves; 0 saves only at the end and on request."""
    keep_last: Annotated[int, Field(ge=0)] = 0
    """Number of newest checkpoints to keep, at least 2; 0 keeps all checkpoints."""
    keep_every: Annotated[int, Field(ge=0)] = 0
    """Keep every checkpoint whose step is a multiple of this number; 0 disables the rule."""
    background: bool = True
    """Copy the state to host memory and write the copy while training goes on; needs host memory for the copy."""

    @model_validator(mode="after")
    def _keeps_a_spare(self) -> Self:
        if self.keep_last == 1:
            raise ValueError("keep_last = 1 leaves no other checkpoint if the newest is damaged; use 2, or 0 for all")
        return self


class TrainerConfig(ConfigTable):
    """A training run, except for the machines that carry it."""

    steps: Count
    """Step at which the run is finished."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] | None = None
    """Seed of initial weights, order of samples and dropout; if absent, drawn, logged and saved in checkpoints."""
    weights: str | None = None
    """Directory of a model of Hugging Face's transformers, whose weights a run without a checkpoint begins with;
    `opsctl checkpoint import` prints the model table for it."""
    accept: bool = False
    """Resume although the learning rate at the checkpoint is another than this config's."""
    deterministic: bool = False
    """Use only GPU kernels with reproducible results; slower."""
    trace: list[str] = Field(default_factory=list)
    """Packages whose calls every rank logs, one line per call."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """bf16: weights and activations in bf16, gradients summed and weights updated in fp32. auto: bf16 where the device
    has instructions for it, else fp32; a resumed run keeps the precision of its checkpoint."""
    recompute: bool = False
    """Recompute the activations of a block in the backward pass instead of storing them: less memory, more time."""
    compile: Literal["auto"] | bool = False
    """true: compile the blocks by torch.compile, after a trial; auto: only on a GPU. With dropout or after a failed
    trial, the run logs why and goes on without."""
    threads: Count | None = None
    """CPU threads of a rank; OMP_NUM_THREADS or the number of usable cores if absent."""
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
    def _tables_agree(self) -> Self:
        wrong_rates = [*self._endless_warmup(), *self._early_anneal()]
        refuse([*self._wrong_sequence_parallel(), *wrong_rates, *self._wrong_data()])
        return self

    def _wrong_sequence_parallel(self) -> Iterator[str]:
        tensor, sequence = self.parallel.tensor, self.model.sequence
        if not self.parallel.sequence_parallel:
            return
        if tensor == 1:
            yield (
                "sequence_parallel = true cuts the sequence over tensor ranks, and tensor = 1 has none: set tensor, or "
                "remove sequence_parallel"
            )
        elif sequence % tensor:
            yield (
                f"sequence_parallel = true: tensor = {tensor} does not divide sequence = {sequence}; "
                f"use sequence = {-(-sequence // tensor) * tensor}"
            )

    def _endless_warmup(self) -> Iterator[str]:
        samples, optimizer = self.samples(), self.optimizer
        falls = optimizer.decay not in ("constant", "inverse-square-root") and optimizer.decay_samples is None
        if falls and optimizer.warmup_samples >= samples:
            yield (
                f"warmup_samples = {optimizer.warmup_samples} takes the whole run of {samples} samples "
                f"({self.steps} steps of {self.batch.global_batch})"
            )

    def _early_anneal(self) -> Iterator[str]:
        optimizer = self.optimizer
        end = optimizer.decay_samples or self.samples()
        if optimizer.anneal_samples and end - optimizer.anneal_samples < optimizer.warmup_samples < end:
            yield (
                f"anneal_samples = {optimizer.anneal_samples} before sample {end} begin "
                f"before the end of warmup_samples = {optimizer.warmup_samples}"
            )

    def _wrong_data(self) -> Iterator[str]:
        if self.evaluation.every and not self.data.held_out and not self.evaluation.sets:
            yield (
                f"evaluation.every = {self.evaluation.every} has no data to evaluate: data.held_out is 0 and "
                "evaluation.sets is empty"
            )

    def samples(self) -> int:
        """Return the samples of the whole run, including the ramp-up."""
        return self.batch.consumed(self.steps)

    def rate(self) -> Rate:
        """Return the schedule of the learning rate, in samples."""
        return Rate(self.optimizer, end=self.optimizer.decay_samples or self.samples())
