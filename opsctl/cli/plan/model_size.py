"""`opsctl plan model` and `opsctl plan memory`."""

from __future__ import annotations

from dataclasses import asdict

import click

from opsctl.calc import gpt_size as models
from opsctl.calc import gpu_memory as calc
from opsctl.calc.accelerators import accelerator, unknown
from opsctl.calc.argument_checks import not_positive, refuse
from opsctl.calc.error_bars import MEMORY_BAR
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.parallel_layout import Cluster, Topology
from opsctl.calc.save_interval import size_bytes
from opsctl.calc.topology_search import least_recomputed
from opsctl.cli.output import json_option, print_json, print_text
from opsctl.cli.plan.options import (
    attention_option,
    batch_option,
    gpu_option,
    needed,
    one_head,
    plot_option,
    precision_option,
    recomputation_option,
    takes_shape,
    zero_option,
)
from opsctl.cli.plan.plots import PlotLine, draw, facts, listing


@click.command()
@takes_shape
@json_option
def model(shape: ModelShape | None, *, as_json: bool) -> None:
    """Count the parameters of a model from its shape.

    \b
    opsctl plan model --layers 96 --hidden 13312 --vocabulary 150257
    """
    shape = needed(shape)
    count = models.parameters(shape)
    figures = {
        "parameters": count,
        "approximate": models.approximate_parameters(shape),
        "block": models.block_parameters(shape),
        "embedding": models.embedding_parameters(shape),
        "ratio": shape.ratio,
        "checkpoint_bytes": size_bytes(count),
    }
    if as_json:
        print_json({"shape": asdict(shape), **figures})
        return
    facts(
        {
            "parameters": f"{count:,} ({count / 1e9:.1f}B)",
            "approximately": f"{figures['approximate']:,}  without the final norm",
            "one layer": f"{figures['block']:,}",
            "embedding": f"{figures['embedding']:,}",
            "hidden / layers": f"{shape.ratio:.0f}",
            "checkpoint": f"{figures['checkpoint_bytes'] / 1e12:.2f} TB",
        }
    )


@click.command()
@takes_shape
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor parallel size.")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--dp", type=int, default=1, show_default=True, help="Data parallel size.")
@click.option("--micro-batch", type=int, default=1, show_default=True, help="Samples per micro batch.")
@batch_option
@zero_option
@precision_option
@recomputation_option
@attention_option
@click.option("--embedding-slots", is_flag=True, help="Count embedding and output as one layer each.")
@gpu_option
@plot_option
@json_option
def memory(
    shape: ModelShape | None,
    *,
    tp: int,
    pp: int,
    dp: int,
    micro_batch: int,
    batch: int,
    zero: int,
    precision: str,
    recompute: str | None,
    attention: str,
    embedding_slots: bool,
    gpu: str,
    plot: str | None,
    as_json: bool,
) -> None:
    """Estimate the GPU memory of every pipeline stage.

    All sizes are in GiB for one GPU.

    \b
    opsctl plan memory --model bloom --tp 4 --pp 12 --dp 8 --micro-batch 2 --batch 2048 --gpu A100
    """
    shape = needed(shape)
    refuse(
        "memory",
        [
            *unknown(gpu),
            *one_head(shape),
            *not_positive(tp=tp, pp=pp, dp=dp, micro_batch=micro_batch, batch=batch),
            *([f"{pp} stages for {shape.layers} layers"] if pp > shape.layers else []),
        ],
    )
    device = accelerator(gpu)
    topology = Topology(
        tp=tp,
        pp=pp,
        dp=dp,
        micro_batch=micro_batch,
        zero=zero,
        precision=precision,
        embedding_slots=embedding_slots,
        recompute=recompute or "none",
        attention=attention,
        sequence_parallel=attention == "flash",
    )
    if recompute is None:
        cluster = Cluster(nodes=1, gpus_per_node=1, gpu=device)
        topology = least_recomputed(shape, cluster, topology, batch=batch)
    stages = calc.stages(shape, topology, batch=batch)
    fullest = max(stages, key=lambda stage: stage.total)
    least = calc.least_gpus(billions=models.parameters(shape) / 1e9, gpu_gb=device.memory_gb)
    if plot:
        curves = [
            PlotLine(name="all", points=[(stage.stage, stage.gib) for stage in stages]),
            PlotLine(name="states", points=[(stage.stage, stage.states / calc.GIB) for stage in stages]),
        ]
        draw(plot, title=f"TP {tp}, PP {pp}, DP {dp}", x="stage", y="GiB of one GPU", curves=curves)
    if as_json:
        print_json(
            {
                "stages": [asdict(stage) | {"gib": stage.gib} for stage in stages],
                "fullest": fullest.stage,
                "fits": fullest.gib <= device.memory_gb,
                "certainly_too_large": calc.is_too_large(fullest.gib, device.memory_gb),
                "low_gib": fullest.gib * MEMORY_BAR.low,
                "high_gib": fullest.gib * MEMORY_BAR.high,
                "recompute": topology.recompute,
                "least_gpus": least,
            }
        )
        return
    _show(stages)
    verdict = "fits" if fullest.gib <= device.memory_gb else "does not fit"
    print_text(f"\nStage {fullest.stage} is the fullest: {fullest.gib:.1f} GiB {verdict} {gpu} ({device.memory_gb:g}).")
    low, high = fullest.gib * MEMORY_BAR.low, fullest.gib * MEMORY_BAR.high
    print_text(f"In 8 of 10 cases {low:.0f} to {high:.0f} GiB; recomputation: {topology.recompute}.")
    print_text(f"At 18 bytes a parameter and a quarter more for activations, {least} GPUs are the least.")


def _show(stages: list[calc.StageMemory]) -> None:
    rows = [
        [
            str(stage.stage),
            str(stage.layers),
            *(f"{getattr(stage, name) / calc.GIB:.1f}" for name in calc.MEMORY_PARTS),
            f"{stage.gib:.1f}",
        ]
        for stage in stages
    ]
    listing(("stage", "layers", *calc.MEMORY_PARTS, "all"), rows)
