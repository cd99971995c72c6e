"""`opsctl plan topology`."""

from collections import Counter
from typing import Any

import click
from rich.table import Table

from opsctl.base.units import format_percent
from opsctl.calc import topology_search as calc
from opsctl.calc.accelerators import accelerator, unknown
from opsctl.calc.argument_checks import not_positive, refuse
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.parallel_layout import Cluster, not_a_cluster, ramp_sizes
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.plan.estimate import Estimate, listing, prints_estimate
from opsctl.cli.plan.options import batch_option, gpu_option, layout_options, one_head, takes_shape


@click.command()
@takes_shape(is_needed=True)
@click.option("--nodes", type=int, required=True, help="Number of nodes.")
@click.option("--gpus-per-node", default=8, show_default=True, help="Number of GPUs per node.")
@gpu_option
@click.option("--network", type=float, help="Network of a node, one way, in GB/s (default: the maker's).")
@batch_option
@click.option("--ramp", metavar="START:INCREMENT", help="Grow the global batch from START by INCREMENT.")
@click.option(
    "--micro-batch",
    "micro_batches",
    type=int,
    multiple=True,
    help="Samples per micro batch (default: 1, 2, 4, 8); repeatable.",
)
@layout_options
@dependent_option(
    "--show",
    not_with=("--all",),
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Number of layouts to show.",
)
@click.option("--all", "everything", is_flag=True, help="Show layouts that cannot run as well, with reasons.")
@prints_estimate
def topology(
    shape: ModelShape,
    *,
    nodes: int,
    gpus_per_node: int,
    gpu: str,
    network: float | None,
    batch: int,
    ramp: str | None,
    micro_batches: tuple[int, ...],
    show: int,
    everything: bool,
    **layout: Any,
) -> Estimate:
    """List parallel layouts for a cluster, fastest first.

    Tries every TP x PP x DP x micro batch that uses all GPUs. Times are predicted, not measured: benchmark the first
    few.

    \b
    opsctl plan topology --model bloom --nodes 48 --gpu A100 --batch 2048 --ramp 192:16
    """
    refuse(
        "topology",
        [
            *unknown(gpu),
            *one_head(shape),
            *not_a_cluster(nodes=nodes, gpus_per_node=gpus_per_node, network=1.0 if network is None else network),
            *not_positive(batch=batch),
            *(["micro batches: each needs to be above 0"] if min(micro_batches, default=1) < 1 else []),
        ],
    )
    cluster = Cluster(nodes=nodes, gpus_per_node=gpus_per_node, gpu=accelerator(gpu), node_gb_s=network)
    sizes = ramp_sizes(ramp, batch) if ramp else ()
    tried = micro_batches or calc.MICRO_BATCHES
    candidates = calc.candidates(shape, cluster, batch=batch, ramp=sizes, micro_batches=tried, **layout)
    good = [candidate for candidate in candidates if not candidate.problems]
    listed = candidates if everything else good[:show]
    stated = "stated" if network else "assumed, as in the maker's clusters"
    return Estimate(
        data=listed,
        shown=[
            _list_layouts(listed),
            _count(candidates),
            f"{cluster.gpu.name}, {cluster.network_gb_s:g} GB/s of network a node ({stated}).",
        ],
    )


def _list_layouts(candidates: list[calc.Candidate]) -> Table:
    rows = []
    for candidate in candidates:
        layout = candidate.topology
        rows.append(
            [
                *map(str, (layout.tp, layout.pp, layout.dp, layout.micro_batch)),
                f"{candidate.seconds:.1f}",
                f"{candidate.early_s:.1f}-{candidate.late_s:.1f}",
                layout.recompute,
                f"{candidate.tflops:.0f}",
                format_percent(candidate.bubble),
                f"{candidate.memory_gib:.0f}",
                f"{candidate.fit_probability:.0%}",
                "; ".join([f"NO: {problem}" for problem in candidate.problems] or candidate.notes),
            ]
        )
    columns = ("TP", "PP", "DP", "micro", "s/step", "8 of 10", "recompute", "TFLOP/s", "bubble", "GiB", "fits", "notes")
    return listing(columns, rows, left=("recompute", "notes"))


def _count(candidates: list[calc.Candidate]) -> str:
    """Return the number of layouts that can run, and how many layouts each rule excludes first."""
    excluded = Counter(candidate.ruled_out_by for candidate in candidates if candidate.ruled_out_by)
    text = ", ".join(f"{count} by {rule}" for rule, count in excluded.most_common())
    counts = f"\n{len(candidates) - excluded.total()} of {len(candidates)} can run."
    return f"{counts} Ruled out: {text}. --all shows why." if text else counts
