"""One measurement of benchmarks/gpu_proof.py: `python -P gpu_proof_rank.py WHAT DIRECTORY PLAN`.

PLAN is JSON: `shape` (the model table), `batch`, `rounds`, `precision` and what else the measurement reads. The figures
go to DIRECTORY/WHAT.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.append(str(Path(__file__).parent))

from trainer_ranks import RATE, Bench, Plain, config, saving

from opsctl.trainer import architecture, compiled_blocks, footprint, gpt, process_groups, tensor_parallel
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.cross_entropy import cross_entropy
from opsctl.trainer.model_size import peak_tflops, step_flops

Figures = dict[str, Any]
Way = Callable[[], object]


def make_config(directory: Path, plan: Mapping[str, Any]) -> TrainerConfig:
    fields = config(directory).model_dump() | {"threads": None, "parallel": {}, "model": plan["shape"]}
    return TrainerConfig.model_validate(fields | {key: plan[key] for key in ("batch", "precision", "recompute")})


class CompiledLoop:
    """Plain torch as one would write it for a GPU: fp32 weights, autocast to bf16, torch.compile, fused AdamW."""

    def __init__(self, trainer_config: TrainerConfig, part: tensor_parallel.Slice, device: torch.device) -> None:
        self.device, self.family = device, trainer_config.model.family
        self.module = Plain(trainer_config, part).to(device)
        for block in self.module.middle:
            block.compile(dynamic=False)
        self.loss = torch.compile(self._loss, dynamic=False)
        groups = list(architecture.parameter_groups(self.module, weight_decay=0.1))
        self.optimizer = torch.optim.AdamW(groups, lr=RATE, fused=True)

    def _loss(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(gpt.logits(self.module.embedding, x).float().flatten(0, 1), labels.flatten())

    def step(self, batches: Iterator[tuple[Tensor, Tensor]], *, accumulation: int) -> float:
        total = torch.zeros((), device=self.device)
        for micro_batch in batches:
            tokens, labels = (x.to(self.device, non_blocking=True) for x in micro_batch)
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                x = self.module.middle(self.module.embedding(tokens))
                loss = self.loss(x, labels) / accumulation
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(total)


def losses(bench: Bench, plan: Mapping[str, Any]) -> Figures:
    """The losses of some steps, each on other samples."""
    batch = bench.config.batch.global_batch
    taken = []
    for step in range(plan["steps"]):
        batches = bench.batches.step(step * batch, batch)
        taken.append(bench.engine.step(batches, batch=batch, rate=RATE * 3, consumed=step * batch)[0])
    return {"losses": taken}


def loss_function(bench: Bench, _: Mapping[str, Any]) -> Figures:
    """The chunked loss against torch's: numbers, seconds, and on a GPU memory."""
    device, model = bench.engine.deepspeed.device, bench.config.model
    scores = torch.randn(bench.config.batch.micro_batch, model.sequence, model.vocabulary, device=device)
    scores = scores.to(torch.bfloat16).requires_grad_()
    labels = torch.randint(0, model.vocabulary, scores.shape[:2], device=device)

    def chunked() -> Tensor:
        return cross_entropy(scores, labels, tensor_parallel.Slice())

    def whole() -> Tensor:
        return functional.cross_entropy(scores.float().flatten(0, 1), labels.flatten())

    figures: Figures = {}
    for name, loss in (("chunked", chunked), ("whole", whole)):
        torch.autograd.grad(loss(), scores)  # allocates and loads kernels
        synchronize(device, reset_peak=True)
        before, seconds = allocated(device), []
        for _ in range(bench.rounds):
            started = time.perf_counter()
            value = loss()
            torch.autograd.grad(value, scores)
            synchronize(device)
            seconds.append(time.perf_counter() - started)
        figures[name] = {
            "loss": float(value.detach()),
            "s": statistics.median(seconds),
            "bytes": peak(device) - before,
        }
    return figures


def save_stall(bench: Bench, _: Mapping[str, Any]) -> Figures:
    bench.ours()  # the optimizer has its state after the first step
    return {**saving(bench)}


def speed(bench: Bench, plan: Mapping[str, Any]) -> Figures:
    """Seconds of a step: as written, compiled, and of plain torch, in turn; memory against the estimate."""
    device = bench.engine.deepspeed.device
    batch, shape = bench.config.batch, bench.config.model
    bench.ours()
    synchronize(device, reset_peak=True)
    bench.ours()
    figures: Figures = {"memory": peak(device), "reserved": reserved(device), "device": device_name(device)}
    figures["estimate"] = footprint.stages(bench.config, bench.cut)[0].total
    reason = bench.engine.compile(bench.config.model_copy(update={"compile": True}), bench.control)
    figures["uncompiled_because"] = reason
    makers: dict[str, Callable[[], Way]] = {"written": lambda: lambda: switch(bench, compiled={}) or bench.ours()}
    if not reason:
        kept = {id(block): block._compiled_call_impl for block in blocks_of(bench)}
        attention = {id(block): block.attention for block in blocks_of(bench)}
        figures["flex"] = any(isinstance(way, compiled_blocks.FlexAttention) for way in attention.values())
        makers["compiled"] = lambda: lambda: switch(bench, compiled=kept, attention=attention) or bench.ours()
    if plan["plain"]:
        makers["plain"] = lambda: plain_way(bench, device)
    ways, figures["unmeasured"] = prepare(makers)
    times = dict(zip(ways, bench.in_turn(*ways.values()), strict=True))
    figures["seconds"] = {name: statistics.median(values) for name, values in times.items()}
    figures["teraflop"] = step_flops(shape, batch=batch.global_batch) / 1e12
    figures["matmul_tflops"] = matmul_rate(device, 8192 if device.type == "cuda" else 256)
    figures["peak_tflops"] = peak_tflops(figures["device"])
    return figures


def plain_way(bench: Bench, device: torch.device) -> Way:
    batch = bench.config.batch
    plain = CompiledLoop(bench.config, bench.part, device)
    turns = batch.global_batch // batch.micro_batch
    return lambda: plain.step(bench.batches.step(0, batch.global_batch), accumulation=turns)


def prepare(makers: Mapping[str, Callable[[], Way]]) -> tuple[dict[str, Way], dict[str, str]]:
    """Return the ways that were made and ran once, and why the others did not: the rest is measured without them."""
    ways, problems = {}, {}
    for name, make in makers.items():
        try:
            way = make()
            way()
            ways[name] = way
        except Exception as error:  # noqa: BLE001 - compilers and memory fail in many ways
            is_memory = isinstance(error, torch.OutOfMemoryError)
            first = (str(error).strip() or "no message").splitlines()[0]
            problems[name] = "out of memory" if is_memory else f"{type(error).__name__}: {first}"
    return ways, problems


def blocks_of(bench: Bench) -> list[Any]:
    layers = bench.engine.deepspeed.module.forward_funcs
    return [layer for layer in layers if isinstance(layer, gpt.Block)]


def switch(bench: Bench, *, compiled: Mapping[int, Any], attention: Mapping[int, Any] | None = None) -> None:
    """Run all blocks as compiled, or as written."""
    compiled_blocks.remove_compilation(bench.engine.deepspeed.module)
    for block in blocks_of(bench):
        block._compiled_call_impl = compiled.get(id(block))
        block.attention = (attention or {}).get(id(block), block.attention)


def matmul_rate(device: torch.device, size: int) -> float:
    """What the device really multiplies: 10¹² operations a second of bf16 matrices, the best of ten."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = 0.0
    for _ in range(10):
        synchronize(device)
        started = time.perf_counter()
        for _ in range(10):
            a @ b
        synchronize(device)
        best = max(best, 10 * 2 * size**3 / (time.perf_counter() - started) / 1e12)
    return best


def synchronize(device: torch.device, *, reset_peak: bool = False) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
        if reset_peak:
            torch.cuda.reset_peak_memory_stats()


def allocated(device: torch.device) -> int:
    return int(torch.cuda.memory_allocated()) if device.type == "cuda" else 0


def peak(device: torch.device) -> int:
    return int(torch.cuda.max_memory_allocated()) if device.type == "cuda" else 0


def reserved(device: torch.device) -> int:
    return int(torch.cuda.max_memory_reserved()) if device.type == "cuda" else 0


def device_name(device: torch.device) -> str:
    return str(torch.cuda.get_device_name()) if device.type == "cuda" else "CPU"


WHAT: dict[str, Callable[[Bench, Mapping[str, Any]], Figures]] = {
    "losses": losses,
    "loss": loss_function,
    "saving": save_stall,
    "speed": speed,
}


def main() -> None:
    what, directory, plan = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    bench = Bench(directory, plan["rounds"], make_config(directory, plan))
    figures = WHAT[what](bench, plan)
    (directory / f"{what}.json").write_text(json.dumps(figures))
    process_groups.leave(bench.control, 0)


if __name__ == "__main__":
    main()
