"""`opsctl plan topology`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from opsctl.base.units import format_percent
from opsctl.calc import topology_search as calc
from opsctl.calc.accelerators import accelerator, unknown
from opsctl.calc.argument_checks import not_positive, refuse
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.parallel_layout import Cluster, not_a_cluster, not_a_ramp, ramp_sizes
from opsctl.cli.dependent_option import DependentOption
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
from opsctl.cli.plan.plots import PlotLine, draw, listing


@click.command()
@takes_shape
@click.option("--nodes", type=int, required=True, help="Number of nodes.")
@click.option("--gpus-per-node", type=int, default=8, show_default=True, help="Number of GPUs per node.")
@gpu_option
@click.option("--network", type=float, help="Network of a node, one way, in GB/s (default: the maker's).")
@batch_option
@click.option("--ramp", metavar="START:INCREMENT", help="Grow the global batch from START by INCREMENT.")
@click.option(
    "--micro-batch", type=int, multiple=True, help="Samples per micro batch (default: 1, 2, 4, 8); repeatable."
)
@zero_option
@precision_option
@recomputation_option
@attention_option
@click.option(
    "--show",
    cls=DependentOption,
    not_with=("--all",),
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Number of layouts to show.",
)
@click.option("--all", "everything", is_flag=True, help="Show layouts that cannot run as well, with reasons.")
@plot_option
@json_option
def topology(
    shape: ModelShape | None,
    *,
    nodes: int,
    gpus_per_node: int,
    gpu: str,
    network: float | None,
    batch: int,
    ramp: str | None,
    micro_batch: tuple[int, ...],
    zero: int,
    precision: str,
    recompute: str | None,
    attention: str,
    show: int,
    everything: bool,
    plot: str | None,
    as_json: bool,
) -> None:
    """List parallel layouts for a cluster, fastest first.

    Tries every TP x PP x DP x micro batch that uses all GPUs. Times are predicted, not measured: benchmark the first
    few.

    \b
    opsctl plan topology --model bloom --nodes 48 --gpu A100 --batch 2048 --ramp 192:16
    """
    shape = needed(shape)
    refuse(
        "topology",
        [
            *unknown(gpu),
            *one_head(shape),
            *not_a_cluster(nodes=nodes, gpus_per_node=gpus_per_node, network=1.0 if network is None else network),
            *not_positive(batch=batch),
            *_ramp_problems(ramp, batch),
            *(["micro batches: each needs to be above 0"] if min(micro_batch, default=1) < 1 else []),
        ],
    )
    cluster = Cluster(nodes=nodes, gpus_per_node=gpus_per_node, gpu=accelerator(gpu), node_gb_s=network)
    candidates = calc.candidates(
        shape,
        cluster,
        batch=batch,
        ramp=_ramp(ramp, batch),
        zero=zero,
        precision=precision,
        micro_batches=micro_batch or calc.MICRO_BATCHES,
        recompute=recompute,
        attention=attention,
    )
    good = [candidate for candidate in candidates if not candidate.problems]
    if plot:
        points = [(candidate.memory_gib, candidate.seconds) for candidate in good]
        curves = [PlotLine(name="layouts that can run", points=points, as_dots=True)]
        draw(plot, title=f"{cluster.gpus} {gpu}", x="GiB of the fullest GPU", y="seconds a step", curves=curves)
    if as_json:
        print_json([asdict(candidate) for candidate in (candidates if everything else good[:show])])
        return
    _show(candidates if everything else good[:show])
    _count(candidates, good)
    stated = "stated" if network else "assumed, as in the maker's clusters"
    print_text(f"{cluster.gpu.name}, {cluster.network_gb_s:g} GB/s of network a node ({stated}).")


def _ramp(text: str | None, batch: int) -> Sequence[int]:
    if not text:
        return ()
    start, increment = map(int, text.split(":"))
    return ramp_sizes(start, increment, batch)


def _ramp_problems(text: str | None, batch: int) -> Iterator[str]:
    if not text:
        return
    if match := re.fullmatch(r"(\d{1,15}):(\d{1,15})", text, re.ASCII):
        yield from not_a_ramp(int(match[1]), int(match[2]), batch)
    else:
        yield f"--ramp {text!r}: needs to be START:INCREMENT, such as 192:16"


def _show(shown: list[calc.Candidate]) -> None:
    def row(candidate: calc.Candidate) -> list[str]:
        layout = candidate.topology
        return [
            str(layout.tp),
            str(layout.pp),
            str(layout.dp),
            str(layout.micro_batch),
            f"{candidate.seconds:.1f}",
            f"{candidate.early_s:.1f}-{candidate.late_s:.1f}",
            layout.recompute,
            f"{candidate.tflops:.0f}",
            format_percent(candidate.bubble),
            f"{candidate.memory_gib:.0f}",
            "; ".join([f"NO: {problem}" for problem in candidate.problems] or candidate.notes),
        ]

    columns = ("TP", "PP", "DP", "micro", "s/step", "8 of 10", "recompute", "TFLOP/s", "bubble", "GiB", "remarks")
    listing(columns, map(row, shown), left=("recompute", "remarks"))


def _count(candidates: list[calc.Candidate], good: list[calc.Candidate]) -> None:
    """Print the number of layouts that can run, and count the first problem of each other layout."""
    why = Counter(candidate.problems[0].partition(":")[0] for candidate in candidates if candidate.problems)
    text = ", ".join(f"{count} by {rule}" for rule, count in why.most_common())
    print_text(
        f"\n{len(good)} of {len(candidates)} can run." + (f" Ruled out: {text}. --all shows why." if text else "")
    )
