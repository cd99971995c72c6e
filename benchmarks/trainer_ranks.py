"""One rank of what benchmarks/trainer.py measures: `python -P trainer_ranks.py WHAT DIRECTORY ROUNDS`.

Two ways to do the same thing are run in turn, so that a slow moment of the machine hits both. Rank 0 leaves the figures
in DIRECTORY/WHAT.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from opsctl.trainer.process_groups import choose_accelerator

choose_accelerator()

import torch  # noqa: E402 - DeepSpeed looks for its accelerator when it is imported
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from opsctl.trainer import architecture, gpt, process_groups, rank_process, tensor_parallel  # noqa: E402
from opsctl.trainer.batches import Batches, open_data  # noqa: E402
from opsctl.trainer.checkpoint.resume import open_resuming  # noqa: E402
from opsctl.trainer.checkpoint.save import Checkpoints  # noqa: E402
from opsctl.trainer.config import TrainerConfig  # noqa: E402
from opsctl.trainer.contract import Env, Phase  # noqa: E402
from opsctl.trainer.cross_entropy import cross_entropy  # noqa: E402
from opsctl.trainer.engine import Engine  # noqa: E402
from opsctl.trainer.heartbeats import Pulse  # noqa: E402
from opsctl.trainer.loop import Hooks  # noqa: E402
from opsctl.trainer.loss_spikes import Spikes  # noqa: E402
from opsctl.trainer.memory_usage import MemoryUsage  # noqa: E402
from opsctl.trainer.metrics_log import Metrics  # noqa: E402
from opsctl.trainer.rank_layout import layout  # noqa: E402
from opsctl.trainer.run_state import RunState  # noqa: E402
from opsctl.trainer.step_log import StepLog  # noqa: E402

RATE = 1e-4


def config(directory: Path, *, pipeline: int = 1, batch: int = 16) -> TrainerConfig:
    """Four blocks of 256: a step of some tenths of a second on a core."""
    return TrainerConfig.model_validate(
        {
            "steps": 10**6,
            "seed": 1,
            "precision": "fp32",
            "threads": 1,
            "model": {"layers": 4, "hidden": 256, "heads": 4, "sequence": 256},
            "data": {"prefix": str(directory / "corpus")},
            "parallel": {"pipeline": pipeline},
            "batch": {"micro_batch": 2, "global_batch": batch},
            "checkpoint": {"every": 0},
            "log": {"every": 1, "heartbeat_s": 5.0},
        }
    )


class Plain(nn.Module):
    """The same layers as the pipeline's, one after the other."""

    def __init__(self, trainer_config: TrainerConfig, part: tensor_parallel.Slice) -> None:
        super().__init__()
        specs = architecture.layers(trainer_config.model, seed=1, part=part)
        self.embedding = specs[0].build()
        self.middle = nn.Sequential(*(spec.build() for spec in specs[1:-1]))

    def forward(self, tokens: Tensor) -> Tensor:
        return gpt.logits(self.embedding, self.middle(self.embedding(tokens)))


class Loop:
    """What one would write without DeepSpeed: accumulate, clip, step; DDP where there are several ranks."""

    def __init__(self, trainer_config: TrainerConfig, part: tensor_parallel.Slice, *, ranks: int) -> None:
        plain = Plain(trainer_config, part)
        self.module = nn.parallel.DistributedDataParallel(plain) if ranks > 1 else plain
        self.optimizer = torch.optim.AdamW(list(architecture.parameter_groups(plain, weight_decay=0.1)), lr=RATE)

    def step(self, batches: Iterator[tuple[Tensor, Tensor]], *, accumulation: int) -> float:
        total = 0.0
        for turn, (tokens, labels) in enumerate(batches, start=1):
            held = self.module.no_sync() if turn < accumulation and hasattr(self.module, "no_sync") else nullcontext()
            with held:
                scores = self.module(tokens)
                loss = functional.cross_entropy(scores.float().flatten(0, 1), labels.flatten()) / accumulation
                loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total


class Bench:
    """A run that is set up and not trained."""

    def __init__(self, directory: Path, rounds: int, trainer_config: TrainerConfig) -> None:
        self.directory, self.rounds = directory, rounds
        self.worked: list[float] = []
        self.config = trainer_config
        self.process = rank_process.from_environment(os.environ)
        self.control = process_groups.connect(self.process, timeout_s=120)
        self.cut = layout(self.config, self.process.world_size)
        self.engine = Engine(self.config, self.cut, self.process.rank)
        self.batches: Batches = open_data(self.config).training(
            self.config, data_rank=self.cut.data_rank(self.process.rank), data_ranks=self.cut.data
        )
        self.part = tensor_parallel.slice_of(self.cut, self.process.rank)

    def ours(self, batch: int = 0) -> float:
        batch = batch or self.config.batch.global_batch
        loss, _ = self.engine.step(self.batches.step(0, batch), batch=batch, rate=RATE, consumed=0)
        return loss

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds until all ranks have done it; what this rank's processors worked meanwhile is in `worked`."""
        self.control.barrier()
        started, working = time.perf_counter(), time.process_time()
        work()
        self.worked.append(time.process_time() - working)
        self.control.barrier()
        return time.perf_counter() - started

    def in_turn(self, *ways: Callable[[], object]) -> list[list[float]]:
        """Seconds of each way, round by round."""
        for way in ways:
            way()
        self.worked.clear()
        rounds = [[self.timed(way) for way in ways] for _ in range(self.rounds)]
        return [list(times) for times in zip(*rounds, strict=True)]


def ratio(ours: list[float], other: list[float]) -> float:
    """How fast ours is, the other being 1: the median over pairs."""
    return statistics.median(b / a for a, b in zip(ours, other, strict=True))


def against_plain(bench: Bench) -> dict[str, float]:
    loop = Loop(bench.config, bench.part, ranks=bench.process.world_size)
    batch, ranks = bench.config.batch, bench.process.world_size
    accumulation = batch.global_batch // batch.micro_batch // ranks

    def theirs() -> float:
        return loop.step(bench.batches.step(0, batch.global_batch), accumulation=accumulation)

    first = bench.ours(), theirs()
    ours, plain = bench.in_turn(bench.ours, theirs)
    figures = {"ratio": ratio(ours, plain), "step_s": statistics.median(ours)}
    figures["processors"] = ratio(bench.worked[0::2], bench.worked[1::2])  # what a busy machine blurs less
    if bench.process.world_size == 1:  # of several, the plain loop knows the loss of its own share alone
        figures["losses_apart"] = abs(first[0] - first[1])
    return figures


def pipeline(bench: Bench) -> dict[str, float]:
    """Efficiency with 8 micro-batches, against what one more costs in a full pipeline; from the fastest rounds.

    A step takes fixed + turn x (micro-batches + stages - 1): the optimizer's part is fixed. `law` is how far 4 and 16
    micro-batches are from that line.
    """
    times = bench.in_turn(*(partial(bench.ours, batch) for batch in (8, 16, 32, 48)))
    few, eight, more, many = map(min, times)
    turn = (many - eight) / 16
    fixed = eight - 9 * turn
    law = max(abs(few / (fixed + 5 * turn) - 1), abs(more / (fixed + 17 * turn) - 1))
    efficiency = 8 * turn / eight
    return {"efficiency": efficiency, "ratio": efficiency * 9 / 8, "law": law, "fixed_s": fixed, "turn_s": turn}


def extras(bench: Bench) -> dict[str, float]:
    """All that the loop does in a step besides the step."""
    run_dir = bench.directory / "run"
    environ = {name: str(run_dir / name.lower()) for name in Env if name not in (Env.ATTEMPT, Env.NODE, Env.RUN_DIR)}
    environ |= {Env.RUN_DIR: str(run_dir), Env.ATTEMPT: "7_1.0", Env.HEARTBEAT_DIR: str(run_dir)}
    run_dir.mkdir(exist_ok=True)
    (run_dir / Env.DEADLINE.lower()).write_text(str(time.time() + 1e6))
    first = bench.process.is_first
    memory = MemoryUsage(where=bench.process.name, host_limit=99.9, gpu_limit=99.9)
    hooks = Hooks(environ, polls=first, margin_s=5.0, memory=memory)
    pulse, log = Pulse(environ, bench.process, bench.config), StepLog(bench.config, bench.process.world_size)
    log_config = bench.config.log.model_copy(update={"tensorboard": True})
    metrics = Metrics(log_config, environ, step=0, writes=first)
    spikes, state = Spikes(bench.config.spike), RunState()

    def around() -> None:
        hooks.agree(bench.control, state)
        pulse.write_heartbeat(Phase.TRAIN, state)
        state.advance(samples=16, loss=2.0, grad_norm=1.0, step_s=0.5)
        interval = log.add(state, rate=RATE, batch=16)
        if interval and first:
            sys.stderr.write(interval.line() + "\n")
            metrics.interval(interval, state)
        state.spike = spikes.add_loss(state.loss)

    (alone,) = bench.in_turn(lambda: [around() for _ in range(20)])
    (steps,) = bench.in_turn(bench.ours)
    value, step = statistics.median(alone) / 20, statistics.median(steps)
    return {"ms": 1000 * value, "step_s": step, "share": value / step}


def saving(bench: Bench) -> dict[str, float]:
    """How long training stands still: for a save in the background, and for one that is waited for."""
    place = bench.directory / "checkpoints"
    resuming = open_resuming(place, bench.config, bench.cut, bench.control)
    checkpoints = Checkpoints(resuming, bench.engine, parameters=0)
    state = RunState(step=0)

    def save(*, background: bool) -> float:
        state.step += 1
        held = replace(state)
        stalled = bench.timed(lambda: checkpoints.save(held, background=background))
        checkpoints.collect_save(state, wait=True)
        return stalled

    save(background=True)  # asks the system for the memory of the copy, once an attempt
    pairs = [(save(background=True), save(background=False)) for _ in range(bench.rounds)]
    shares = [stall / whole for stall, whole in pairs]
    return {"share": statistics.median(shares), "stall_s": pairs[-1][0], "save_s": pairs[-1][1]}


def loading(bench: Bench) -> dict[str, float]:
    read, steps = bench.in_turn(lambda: [list(bench.batches.step(n * 16, 16)) for n in range(20)], bench.ours)
    return {"times": statistics.median(b / (a / 20) for a, b in zip(read, steps, strict=True))}


def loss_in_chunks(bench: Bench) -> dict[str, float]:
    """The loss and its gradients as the trainer computes them, against torch's, at a vocabulary of 50,304 in bf16."""
    scores = torch.randn(2, 256, 50304, dtype=torch.bfloat16).requires_grad_()
    labels = torch.randint(0, 50304, (2, 256))

    def chunked() -> None:
        torch.autograd.grad(cross_entropy(scores, labels, tensor_parallel.Slice()), scores)

    def whole() -> None:
        torch.autograd.grad(functional.cross_entropy(scores.float().flatten(0, 1), labels.flatten()), scores)

    ours, other = bench.in_turn(chunked, whole)
    return {"ratio": ratio(ours, other), "processors": ratio(bench.worked[0::2], bench.worked[1::2])}


def fused_adamw(bench: Bench) -> dict[str, float]:
    """AdamW over one flat buffer of four million numbers, as ZeRO holds them: fused, against operation by operation."""

    def optimizer(*, fused: bool) -> torch.optim.Optimizer:
        flat = nn.Parameter(torch.randn(1 << 22))
        flat.grad = torch.randn(1 << 22)
        return torch.optim.AdamW([flat], lr=RATE, fused=fused)

    ours, other = bench.in_turn(optimizer(fused=True).step, optimizer(fused=False).step)
    return {"ratio": ratio(ours, other), "processors": ratio(bench.worked[0::2], bench.worked[1::2])}


# How many stages, how many samples a step, and what is measured.
WHAT: dict[str, tuple[int, int, Callable[[Bench], dict[str, float]]]] = {
    "plain": (1, 16, against_plain),
    "plain-large": (1, 64, against_plain),
    "ddp": (1, 16, against_plain),
    "ddp-large": (1, 64, against_plain),
    "loss": (1, 16, loss_in_chunks),
    "adamw": (1, 16, fused_adamw),
    "pipeline": (2, 16, pipeline),
    "extras": (1, 16, extras),
    "saving": (1, 16, saving),
    "loading": (1, 16, loading),
}


def main() -> None:
    what, directory, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    stages, batch, measure = WHAT[what]
    bench = Bench(directory, rounds, config(directory, pipeline=stages, batch=batch))
    figures = measure(bench)
    if bench.process.is_first:
        (directory / f"{what}.json").write_text(json.dumps(figures))
    process_groups.leave(bench.control, 0)


if __name__ == "__main__":
    main()
