"""`opsctl plan model` and `opsctl plan memory`."""

from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from opsctl.calc import gpt_size as models
from opsctl.calc import gpu_memory as calc
from opsctl.calc.accelerators import accelerator, unknown
from opsctl.calc.argument_checks import not_positive, refuse
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.parallel_layout import Cluster, Topology
from opsctl.calc.save_interval import size_bytes
from opsctl.calc.topology_search import least_recomputed
from opsctl.cli.plan.estimate import Estimate, facts, listing, prints_estimate
from opsctl.cli.plan.options import batch_option, gpu_option, layout_options, one_head, takes_shape


@click.command()
@takes_shape(is_needed=True)
@prints_estimate
def model(shape: ModelShape) -> Estimate:
    """Count the parameters of a model from its shape.

    \b
    opsctl plan model --layers 96 --hidden 13312 --vocabulary 150257
    """
    count = models.parameters(shape)
    block, embedding = models.block_parameters(shape), models.embedding_parameters(shape)
    checkpoint_bytes = size_bytes(count)
    return Estimate(
        data={
            "shape": shape,
            "parameters": count,
            "block": block,
            "embedding": embedding,
            "checkpoint_bytes": checkpoint_bytes,
        },
        shown=[
            facts(
                {
                    "parameters": f"{count:,} ({count / 1e9:.1f}B)",
                    "one layer": f"{block:,}",
                    "embedding": f"{embedding:,}",
                    "checkpoint": f"{checkpoint_bytes / 1e12:.2f} TB",
                }
            )
        ],
    )


@click.command()
@takes_shape(is_needed=True)
@click.option("--tp", default=1, show_default=True, help="Tensor parallel size.")
@click.option("--pp", default=1, show_default=True, help="Pipeline stages.")
@click.option("--dp", default=1, show_default=True, help="Data parallel size.")
@click.option("--micro-batch", default=1, show_default=True, help="Samples per micro batch.")
@batch_option
@layout_options
@click.option("--embedding-slots", is_flag=True, help="Count embedding and output as one layer each.")
@gpu_option
@prints_estimate
def memory(shape: ModelShape, *, batch: int, gpu: str, recompute: str | None, **layout: Any) -> Estimate:
    """Estimate the GPU memory of every pipeline stage.

    All sizes are in GiB for one GPU.

    \b
    opsctl plan memory --model bloom --tp 4 --pp 12 --dp 8 --micro-batch 2 --batch 2048 --gpu A100
    """
    sizes = {name: layout[name] for name in ("tp", "pp", "dp", "micro_batch")}
    refuse(
        "memory",
        [
            *unknown(gpu),
            *one_head(shape),
            *not_positive(**sizes, batch=batch),
            *([f"{sizes['pp']} stages for {shape.layers} layers"] if sizes["pp"] > shape.layers else []),
        ],
    )
    device = accelerator(gpu)
    is_flash = layout["attention"] == "flash"
    topology = Topology(**layout, recompute=recompute or "none", sequence_parallel=is_flash)
    if recompute is None:
        cluster = Cluster(nodes=1, gpus_per_node=1, gpu=device)
        topology = least_recomputed(shape, cluster, topology, batch=batch)
    stages = calc.stages(shape, topology, batch=batch)
    fullest = max(stages, key=lambda stage: stage.total)
    low, high = fullest.gib * fullest.bar.low, fullest.gib * fullest.bar.high
    fitting = fullest.fit_probability(device.memory_gb)
    return Estimate(
        data={
            "stages": [asdict(stage) | {"gib": stage.gib} for stage in stages],
            "fullest": fullest.stage,
            "fits": fullest.fits(device.memory_gb),
            "fit_probability": fitting,
            "low_gib": low,
            "high_gib": high,
            "recompute": topology.recompute,
        },
        shown=[
            _list_stages(stages),
            f"\nStage {fullest.stage} is the fullest: {fullest.gib:.1f} GiB of {device.memory_gb:g} on {gpu}, "
            f"fits with {fitting:.0%}.",
            f"It needs {low:.0f} to {high:.0f} GiB in 8 of 10 cases; recomputation: {topology.recompute}.",
        ],
    )


def _list_stages(stages: list[calc.StageMemory]) -> Table:
    rows = [
        [
            str(stage.stage),
            str(stage.layers),
            *(f"{getattr(stage, name) / calc.GIB:.1f}" for name in calc.MEMORY_PARTS),
            f"{stage.gib:.1f}",
        ]
        for stage in stages
    ]
    return listing(("stage", "layers", *calc.MEMORY_PARTS, "all"), rows)
