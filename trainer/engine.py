"""The model under DeepSpeed: one call trains one step over all stages, tensor ranks and data-parallel ranks."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch.utils.checkpoint import checkpoint

from opsctl.integrations.opsctl_step_times import StepTimes
from opsctl.trainer import architecture, deepspeed_private, random_numbers, tensor_parallel
from opsctl.trainer.batches import on_device
from opsctl.trainer.checkpoint.transformers_weights import load_weights
from opsctl.trainer.compiled_blocks import compile_stage, remove_compilation
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.cross_entropy import cross_entropy
from opsctl.trainer.gpt import Block
from opsctl.trainer.process_groups import Control
from opsctl.trainer.rank_layout import Layout, first_layers

_BALANCE = {"blocks-and-embeddings": "type:Block|TokenEmbedding|OutputProjection", "blocks": "type:Block"}

_BUCKET_ELEMENTS = 50_000_000
"""Gradients that are summed over the ranks at a time, with precision = fp32: 200 MB on every GPU instead of 2 GB."""


class Engine:
    """The interface of the training loop to DeepSpeed's PipelineEngine."""

    def __init__(self, config: TrainerConfig, layout: Layout, rank: int, *, begins: bool = True) -> None:
        """`begins`: draw initial weights, or read those of the config; otherwise a checkpoint has to be loaded."""
        if config.threads:
            torch.set_num_threads(config.threads)
        self._seeds = random_numbers.Seeds(config, layout, rank)
        part = tensor_parallel.slice_of(layout, rank, cuts_sequence=config.parallel.sequence_parallel)
        is_replaced = config.weights or not begins
        with _quiet_stdout(), random_numbers.left_out() if is_replaced else contextlib.nullcontext():
            self.deepspeed = self._build(config, layout, part, weights=config.weights if begins else None)
        self.times = StepTimes(work=f"stage {layout.stage(rank)}")
        deepspeed_private.replace(self.deepspeed, schedule.ForwardPass, self._measure)
        if config.precision == "bf16":
            deepspeed_private.sum_in_fp32(self.deepspeed)
        self._sum_shared_gradients(part)

    def _build(self, config: TrainerConfig, layout: Layout, part: tensor_parallel.Slice, *, weights: str | None) -> Any:
        assert config.seed is not None  # choose_seed() has drawn a missing seed
        module = deepspeed_private.Stages(
            first_layers(config),
            architecture.layers(config.model, seed=config.seed, part=part),
            topology=PipeModelDataParallelTopology(num_pp=layout.pipeline, num_mp=layout.tensor, num_dp=layout.data),
            loss_fn=partial(cross_entropy, part=part),
            partition_method=_BALANCE[config.parallel.balance],
            seed_layers=config.model.dropout > 0,
            seed_fn=self._seeds,
            base_seed=random_numbers.BASE,
            activation_checkpoint_interval=int(config.recompute),
            activation_checkpoint_func=partial(checkpoint, use_reentrant=False, preserve_rng_state=False),
            checkpointable_layers=[Block.__name__],
        )
        accumulation = layout.accumulation(micro_batch=config.batch.micro_batch, global_batch=config.batch.global_batch)
        # DeepSpeed writes this into every checkpoint.
        module.universal_checkpoint_info = architecture.universal_info(config.model)
        if weights:
            load_weights(deepspeed_private.layers_by_number(module), Path(weights), config.model, part)
        optimizer = config.optimizer
        adamw = torch.optim.AdamW(
            list(architecture.parameter_groups(module, weight_decay=optimizer.weight_decay)),
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            fused=True,
        )
        deepspeed_private.import_muon_uncompiled()
        engine, *_ = deepspeed.initialize(
            model=module, optimizer=adamw, config=deepspeed_config(config, accumulation=accumulation)
        )
        return engine

    @property
    def reads_data(self) -> bool:
        """Whether this stage needs tokens or labels."""
        return bool(self.deepspeed.is_first_stage() or self.deepspeed.is_last_stage())

    def compile(self, config: TrainerConfig, control: Control) -> str:
        """Compile the blocks if the config asks for it; return why they are not compiled, or an empty text."""
        _, layers = deepspeed_private.layers_of(self.deepspeed.module)
        blocks = [layer for layer in layers if isinstance(layer, Block)]
        return compile_stage(blocks, config, self.deepspeed.device, control)

    def step(
        self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], *, batch: int, rate: float, consumed: int
    ) -> tuple[float, float]:
        """Take one optimizer step on `batch` samples at learning rate `rate` after `consumed` samples.

        Returns the mean loss and the norm of the gradient, over all ranks. If the norm is not finite, it is returned as
        NaN and no rank has taken the step: the weights have not changed.
        """
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = rate
        if batch != self.deepspeed.train_batch_size():
            self.deepspeed.set_train_batch_size(batch)
        self.times.drop()  # the passes of an evaluation
        loss = self._train_batch(batches, consumed)
        norm = self.deepspeed.get_global_grad_norm()
        loss, norm = torch.stack([loss.float(), torch.as_tensor(norm, device=loss.device).float()]).tolist()
        self.times.end_step()
        return loss, norm if math.isfinite(norm) and norm >= 0 else math.nan  # DeepSpeed returns inf or -1

    def rerun(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], *, consumed: int) -> None:
        """Run forward and backward passes of a step without the optimizer; this engine cannot train afterwards."""
        remove_compilation(self.deepspeed.module)
        deepspeed_private.replace(self.deepspeed, schedule.OptimizerStep, lambda _: lambda *_, **__: None)
        self._train_batch(batches, consumed)

    def _sum_shared_gradients(self, part: tensor_parallel.Slice) -> None:
        """Sum gradients of which every tensor rank has a share, before they are averaged; one message a step."""
        parameters = tensor_parallel.shared_gradients(self.deepspeed.module, part)

        def summing(average: Callable[..., None]) -> Callable[..., None]:
            def reduce(engine: Any) -> None:
                part.sum_all([deepspeed_private.summed_gradient(engine, parameter) for parameter in parameters])
                average(engine)

            return reduce

        if parameters:
            deepspeed_private.replace(self.deepspeed, schedule.ReduceGrads, summing)

    def _measure(self, forward: Callable[..., None]) -> Callable[..., None]:
        """Return `forward`, measured as this rank's own work."""

        def measured(*args: Any, **kwargs: Any) -> None:
            with self.times.compute():
                forward(*args, **kwargs)

        return measured

    def _train_batch(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], consumed: int) -> torch.Tensor:
        """Return the mean loss, which may still be computed."""
        self._seeds.start(consumed)
        self.deepspeed.module.micro_offset = 0
        loss: torch.Tensor = self.deepspeed.train_batch(data_iter=on_device(batches, self.deepspeed.device))
        return loss

    def evaluate(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]], *, batch: int) -> float:
        """Return the mean loss over `batch` samples without training."""
        self.deepspeed.module.micro_offset = 0
        micro_batches = batch // (self.deepspeed.train_micro_batch_size_per_gpu() * self.deepspeed.dp_world_size)
        ready = on_device(batches, self.deepspeed.device)
        return float(self.deepspeed.eval_batch(data_iter=ready, num_micro_batches=micro_batches))

    def write_with(self, writer: CheckpointEngine) -> None:
        """Make `writer` write and read the files of checkpoints."""
        self.deepspeed.checkpoint_engine = writer
        deepspeed_private.leave_scripts_out(self.deepspeed)

    def save(self, directory: Path) -> None:
        """Write the files of this rank into `directory`; all ranks together."""
        self.deepspeed.save_checkpoint(str(directory.parent), tag=directory.name, save_latest=False)

    def load(self, directory: Path, *, universal: bool = False) -> None:
        """Load weights and optimizer of this rank from `directory`; all ranks together.

        `universal`: the files hold whole parameters, and every rank takes its slice.
        """
        deepspeed_private.expect_universal(self.deepspeed, universal=universal)  # the kind is known only now
        with _quiet_stdout():
            self.deepspeed.load_checkpoint(str(directory.parent), tag=directory.name)


def deepspeed_config(config: TrainerConfig, *, accumulation: int) -> dict[str, Any]:
    """Return DeepSpeed's config.

    Without grad_accum_dtype, DeepSpeed would sum bf16 gradients in bf16. With immediate_grad_update it adds a gradient
    to the fp32 sum as soon as it is complete, and frees it: the same sums with a third of the memory traffic.
    """
    fields: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": config.batch.micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": config.optimizer.clip,
        # With stage 0, DeepSpeed sums gradients of bf16 in bf16, and with fp32 leaves the later stages out of the norm.
        "zero_optimization": {"stage": 1, "reduce_bucket_size": _BUCKET_ELEMENTS},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
        # DeepSpeed cuts what a stage sends over the tensor ranks, as if they all had the same.
        "pipeline": dict.fromkeys(("pipe_partitioned", "grad_partitioned"), not config.parallel.sequence_parallel),
    }
    if config.precision == "bf16":
        fields |= {"bf16": {"enabled": True, "immediate_grad_update": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return fields


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Discard DeepSpeed's prints of seeds, memory and keys: stdout is the log, which programs parse."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
