"""`opsctl plan MODEL`: the plan of a run on one page."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.table import Table

from opsctl.base.errors import InputError
from opsctl.base.tables import read_package_table
from opsctl.base.units import format_duration, format_percent
from opsctl.calc.accelerators import ACCELERATORS, accelerator, unknown
from opsctl.calc.argument_checks import negative, not_positive, refuse
from opsctl.calc.gpt_size import PUBLISHED, active_parameters, parameters, shape_of_size
from opsctl.calc.gpu_memory import GIB, MEMORY_PARTS
from opsctl.calc.parallel_layout import Cluster, Topology, round_batch
from opsctl.calc.run_plan import TASK_H, PlannedLayout, RunInputs, RunPlan, parse_topology, plan_run
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import HOURS, SECONDS
from opsctl.cli.output import write_file
from opsctl.cli.plan.estimate import Estimate, facts, listing, prints_estimate
from opsctl.cli.plan.failures import describe_task_spares
from opsctl.cli.plan.learned import LABELS, compare, digits, learn
from opsctl.cli.plan.model_source import PlannedModel, find_model
from opsctl.cli.plan.options import currency_option, failures_option, kernels_option, precision_option

if TYPE_CHECKING:
    from opsctl.app import App

PURPOSES = {int(ratio): purpose for ratio, purpose in read_package_table("cli/plan/purposes.toml").items()}
"""By tokens of a parameter: what such a model is for."""
TOKENS_PER_PARAMETER = 20
"""Hoffmann et al. 2022, table 3."""
ASSUMED_BATCH_TOKENS = 4 * 2**20
"""Llama 3 began with 4M tokens a step (arXiv 2407.21783, section 3.4.1)."""
SHOWN_LAYOUTS = 5
START_FILES, NODE_FILES = 8, 2
"""Files of one start of the trainer, and of each of its nodes: the log and the marks of its ranks."""
RANK_OPERATIONS, SHARED_PYTHON_OPERATIONS = 6, 162
"""File operations of a rank wrapper, by strace: with the Python of the node, and with one on the shared file system."""
SLURM_CALLS, VIEWER_CALLS = 24, 180
"""Calls of Slurm an hour: 12 by the guard and 12 by cron; at most by all `status --watch` of a user on a host."""
STATED = {"failures": "per_1000_node_days", "save": "save_gb_s", "queue": "queue_h"}
"""By option: the field that no file replaces if the option is given."""
_NO_FIGURES = {"layouts", "tried", "bar", "total_bar"}
"""Fields of RunPlan that JSON has in another form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overview:
    """All that one page shows."""

    model: PlannedModel
    inputs: RunInputs
    unlearned: RunInputs
    plan: RunPlan
    assumed: list[str]
    currency: str | None
    end: str


@click.command()
@click.argument("model", required=False, metavar="[MODEL]")
@dependent_option("--layers", not_with=("MODEL",), type=int, help="Number of layers, without a MODEL.")
@dependent_option("--hidden", not_with=("MODEL",), type=int, help="Hidden size, without a MODEL.")
@click.option("--sequence", type=int, help="Tokens per sample.")
@click.option("--gpus", type=int, help="Number of GPUs; required.")
@click.option("--gpu", help="GPU, such as H100, or figures (tflops=989,…); required.")
@click.option("--gpus-per-node", type=int, default=8, show_default=True, help="Number of GPUs per node.")
@click.option("--network", type=float, help="Network bandwidth of a node, one way, in GB/s.")
@click.option("--batch", type=int, help="Global batch size, in samples.")
@click.option("--batch-tokens", type=float, help="Global batch size, in tokens.")
@click.option("--tokens", type=float, help="Number of training tokens, in billions.")
@precision_option
@kernels_option
@click.option("--topology", "layout", metavar="WORDS", help="Plan this layout alone, such as 'TP8 PP4 MB1'.")
@click.option(
    "--learn",
    "--measured",
    "--from-log",
    metavar="'WHAT for WORDS'",
    multiple=True,
    help="Learn what a run, a drill or a plan measured; repeatable.",
)
@click.option("--price", type=float, help="Price of one GPU-hour; needs --currency.")
@currency_option
@failures_option
@click.option("--queue", type=HOURS, default=0.0, show_default=True, help="Time in the queue after a failure.")
@click.option("--save", type=SECONDS, help="Duration of a save (default: 2 GB/s a node).")
@click.option("--html", type=click.Path(path_type=Path), help="Write the page with plots to this file.")
@prints_estimate
@click.pass_obj
def overview(app: App, /, *, html: Path | None, **options: Any) -> Estimate:
    """Plan a run: layouts, time, cost and failures.

    MODEL is a preset, a config.json of Hugging Face, or a TRAIN.toml. With --tokens alone, sizes are proposed. Every
    figure has the range of 8 in 10 measurements. Missing inputs are assumed and listed. With --queue,
    proposes how many spare nodes each task should have; time and GPU-hours are with them. `opsctl plan MODEL` is the
    same command.

    \b
    opsctl plan overview llama-3-70b --gpus 512 --gpu H100 --tokens 15000
    opsctl plan overview --gpus 64 --gpu H100 --tokens 2000
    opsctl plan overview config.json --gpus 64 --gpu A100 --learn '38.2 for TP4 PP2 MB1' --learn report.json
    """
    if not (options["model"] or options["layers"] or options["hidden"]) and options["tokens"]:
        return _propose_sizes(options)
    page = _make_overview(app, **options)
    data = _to_data(page)
    if html:
        from opsctl.launch.render import render_page  # noqa: PLC0415 (jinja2, only for --html)

        memory_gib = {name: size / GIB for name, size in data["memory_bytes"].items()}
        write_file(html, render_page("plan/overview.html.j2", memory_gib=memory_gib, **data))
    return Estimate(data=data, shown=_show(page))


def _propose_sizes(given: dict[str, Any]) -> Estimate:
    """Plan models of several sizes for the tokens: the compute-optimal one, and smaller ones for cheaper inference."""
    _check(given | {"model": next(iter(PUBLISHED))})
    rows, data = [], []
    for ratio, purpose in PURPOSES.items():
        shape = shape_of_size(given["tokens"] * 1e9 / ratio, sequence=given["sequence"])
        inputs = _learn(_read_inputs(PlannedModel(name=purpose, shape=shape), given, []), given["learn"])
        size = f"{parameters(shape) / 1e9:.3g}B"
        with contextlib.suppress(InputError):
            plan = plan_run(inputs)
            best, bar = plan.layouts[0], plan.total_bar
            layout = _layout_data(best, inputs)
            figures = {"days": plan.days, "gpu_hours": plan.gpu_hours, "energy_mwh": plan.energy_mwh, "cost": plan.cost}
            data.append({"purpose": purpose, "shape": asdict(shape), **figures, "layout": layout, "bar": asdict(bar)})
            words = f"TP{best.topology.tp} PP{best.topology.pp} {best.topology.recompute}"
            cells = [_range(value, bar.low, bar.high) for value in figures.values() if value is not None]
            rows.append([size, str(ratio), purpose, words, f"{layout['fit_probability']:.0%}", *cells])
    if not rows:
        raise InputError("none of the sizes fits", hint="more GPUs, or fewer tokens")
    columns = ("size", "tokens/parameter", "purpose", "layout", "fits", "days", "GPU-hours", "MWh", "cost")
    listed = listing(columns[: len(rows[0])], rows, left=("purpose", "layout"))
    return Estimate(data=data, shown=[listed, "\nRanges hold in 8 of 10 cases. Plan one with --layers and --hidden."])


def _make_overview(app: App, **given: Any) -> _Overview:
    _check(given)
    assumed: list[str] = []
    model = find_model(given["model"], layers=given["layers"], hidden=given["hidden"], sequence=given["sequence"])
    assumed.extend(model.assumed)
    inputs = _read_inputs(model, given, assumed)
    learned = _learn(inputs, given["learn"])
    if learned.per_1000_node_days == inputs.per_1000_node_days:
        assumed.append(f"--failures {inputs.per_1000_node_days:g} per 1000 node-days")
    if learned.save_s is None and learned.save_gb_s == inputs.save_gb_s:
        assumed.append(f"a save at {inputs.save_gb_s:g} GB/s a node (--save)")
    plan = plan_run(learned)
    end = (app.clock.now() + timedelta(days=min(plan.days, 36500))).date().isoformat()
    return _Overview(
        model=model,
        inputs=learned,
        unlearned=inputs,
        plan=plan,
        assumed=assumed,
        currency=given["currency"],
        end=end,
    )


def _check(given: dict[str, Any]) -> None:
    names = ("layers", "hidden", "sequence", "gpus", "gpus_per_node", "network", "batch", "batch_tokens", "tokens")
    problems = [
        *(["--gpus is missing: the number of GPUs"] if given["gpus"] is None else []),
        *(unknown(given["gpu"]) if given["gpu"] else [f"--gpu is missing; known: {', '.join(ACCELERATORS)}"]),
        *not_positive(**{name: given[name] for name in (*names, "price", "failures", "save")}),
        *negative(queue=given["queue"]),
        *(["give --batch or --batch-tokens, not both"] if given["batch"] and given["batch_tokens"] else []),
        *(["--price needs --currency, such as USD"] if given["price"] and not given["currency"] else []),
    ]
    if problems:
        refuse("plan", [*_doubt_model(given), *problems])


def _doubt_model(given: dict[str, Any]) -> Iterator[str]:
    """Yield why there is no model. The sizes of an unnamed model are checked with the other figures."""
    if given["model"] is None and given["layers"] and given["hidden"]:
        return
    try:
        find_model(given["model"], layers=given["layers"], hidden=given["hidden"], sequence=None)
    except InputError as error:
        yield f"{error.message}: {error.hint}" if error.hint else error.message


def _read_inputs(model: PlannedModel, given: dict[str, Any], assumed: list[str]) -> RunInputs:
    gpu, gpus, shape = accelerator(given["gpu"]), given["gpus"], model.shape
    per_node = min(given["gpus_per_node"], gpus)
    if gpus % per_node:
        raise InputError(f"--gpus {gpus}: not a multiple of {per_node} GPUs per node")
    cluster = Cluster(nodes=gpus // per_node, gpus_per_node=per_node, gpu=gpu, node_gb_s=given["network"])
    if given["network"] is None and cluster.nodes > 1:
        assumed.append(f"--network {cluster.network_gb_s:g} GB/s a node, as in the maker's reference cluster")
    batch = given["batch"] or model.batch
    if given["batch_tokens"]:
        batch = round_batch(given["batch_tokens"] / shape.sequence, gpus)
        if batch != given["batch_tokens"] / shape.sequence:
            assumed.append(f"--batch {batch} ({batch * shape.sequence / 1e6:.2f}M tokens), which the GPUs can share")
    if not batch:
        batch = max(gpus, ASSUMED_BATCH_TOKENS // shape.sequence // gpus * gpus)
        assumed.append(f"--batch {batch} samples ({batch * shape.sequence / 1e6:.1f}M tokens)")
    tokens = (given["tokens"] or 0) * 1e9
    if not tokens:
        tokens = float(TOKENS_PER_PARAMETER * parameters(shape))
        assumed.append(f"--tokens {tokens / 1e9:.0f} billion, {TOKENS_PER_PARAMETER} a parameter")
    inputs = RunInputs(
        shape=shape,
        cluster=cluster,
        batch=batch,
        tokens=tokens,
        precision=given["precision"],
        kernels=given["kernels"],
        per_1000_node_days=given["failures"],
        queue_h=given["queue"],
        save_s=given["save"],
        price=given["price"],
        fullest=model.fullest,
    )
    return replace(inputs, topology=_stated_topology(model, given["layout"], inputs))


def _stated_topology(model: PlannedModel, words: str | None, inputs: RunInputs) -> Topology | None:
    if words:
        return parse_topology(words, inputs)
    return model.topology(inputs.cluster.gpus) if model.topology else None


def _learn(inputs: RunInputs, sources: Sequence[str]) -> RunInputs:
    source_of = click.get_current_context().get_parameter_source
    stated = frozenset(field for option, field in STATED.items() if source_of(option) is ParameterSource.COMMANDLINE)
    learned = inputs
    for text in sources:
        source, _, words = text.partition(" for ")
        ran = parse_topology(words, inputs) if words else inputs.topology
        learned = learn(source.strip(), learned, ran, stated=stated)
    return learned


def _to_data(page: _Overview) -> dict[str, Any]:
    plan, inputs = page.plan, page.inputs
    best = plan.layouts[0]
    return {
        "model": page.model.name,
        "shape": asdict(inputs.shape),
        "active_parameters": active_parameters(inputs.shape),
        "gpus": inputs.cluster.gpus,
        "gpu": inputs.cluster.gpu.name,
        "network_gb_s": inputs.cluster.network_gb_s,
        "batch": inputs.batch,
        "batch_tokens": inputs.batch * inputs.shape.sequence,
        "tokens": inputs.tokens,
        "assumed": page.assumed,
        "calibrated": inputs.factor if inputs.bar else None,
        "learned": {name: now for name in LABELS if (now := getattr(inputs, name)) != getattr(page.unlearned, name)},
        "error_bar": asdict(plan.bar),
        "total_error_bar": asdict(plan.total_bar),
        "memory_error_bar": asdict(best.memory.bar),
        "layouts": [_layout_data(layout, inputs) for layout in plan.layouts[:SHOWN_LAYOUTS]],
        "layouts_tried": plan.tried,
        "layouts_that_fit": len(plan.layouts),
        "memory_bytes": {name: getattr(best.memory, name) for name in MEMORY_PARTS},
        "step_s_by_part": best.parts,
        **{field.name: getattr(plan, field.name) for field in fields(plan) if field.name not in _NO_FIGURES},
        "opsctl": _own_cost(page),
        "currency": page.currency,
        "end": page.end,
    }


def _own_cost(page: _Overview) -> dict[str, int]:
    """Return what opsctl itself costs a run whose trainer starts after every failure, and in every task.

    Sources: docs/explanation/performance.md, docs/reference/slurm-load.md.
    """
    plan, cluster = page.plan, page.inputs.cluster
    starts = math.ceil(plan.failures + max(1, plan.days * 24 / TASK_H))
    return {
        "starts": starts,
        "files": starts * (START_FILES + NODE_FILES * cluster.nodes),
        "file_operations_per_start": RANK_OPERATIONS * cluster.gpus,
        "file_operations_per_start_with_shared_python": SHARED_PYTHON_OPERATIONS * cluster.gpus,
        "slurm_calls_per_hour": SLURM_CALLS,
        "slurm_calls_per_hour_of_viewer": VIEWER_CALLS,
    }


def _layout_data(layout: PlannedLayout, inputs: RunInputs) -> dict[str, Any]:
    return {
        **asdict(layout.topology),
        "memory_gib": layout.memory.gib,
        "fit_probability": layout.memory.fit_probability(inputs.cluster.gpu.memory_gb),
        "seconds": layout.seconds,
        "bubble": layout.topology.bubble(inputs.batch),
    }


def _show(page: _Overview) -> list[str | Table]:
    plan, inputs, cluster = page.plan, page.inputs, page.inputs.cluster
    active = active_parameters(inputs.shape)
    nodes = f"{cluster.nodes} nodes, {cluster.network_gb_s:g} GB/s a node"
    routed = f", {active / 1e9:.1f}B active" if inputs.shape.experts else ""
    hint = "calibrated by a measured step" if inputs.bar else "calibrate with --learn 'SECONDS for TOPOLOGY'"
    return [
        facts(
            {
                "model": f"{page.model.name}: {plan.parameters / 1e9:.1f}B parameters{routed}",
                "cluster": f"{cluster.gpus} {cluster.gpu.name}, {nodes}",
                "batch": f"{inputs.batch} samples, {inputs.batch * inputs.shape.sequence / 1e6:.2f}M tokens",
                "training": f"{inputs.tokens / 1e9:.0f}B tokens, {plan.steps:,} steps",
            }
        ),
        "",
        _list_layouts(page),
        f"{len(plan.layouts)} of {plan.tried} layouts fit; the fastest of those with 70 % or more is planned.\n",
        facts(_describe(page)),
        f"\nRanges hold in 8 of 10 cases; {hint}.",
        *(compare(inputs, page.unlearned, plan) if inputs != page.unlearned else []),
        *(f"assumed: {line}" for line in page.assumed),
    ]


def _describe(page: _Overview) -> dict[str, str]:
    plan, gpu = page.plan, page.inputs.cluster.gpu
    low, high = plan.bar.low, plan.bar.high
    least, most = plan.total_bar.low, plan.total_bar.high
    memory, own = plan.layouts[0].memory, _own_cost(page)
    return {
        "time of a step": _range(plan.step_s, low, high, "s"),
        "memory": f"{_range(memory.gib, memory.bar.low, memory.bar.high, 'GiB')} of {gpu.memory_gb:g}, "
        f"fits with {memory.fit_probability(gpu.memory_gb):.0%}: "
        f"states {memory.states / GIB:.0f}, activations {memory.activations / GIB:.0f}",
        "TFLOP/s": f"{_range(plan.tflops, 1 / high, 1 / low)}, MFU {format_percent(plan.mfu)}",
        "tokens a day": _range(plan.tokens_per_day / 1e9, 1 / high, 1 / low, "billion"),
        "effective time": format_percent(plan.effective) + _compare_spares(page),
        "days": f"{_range(plan.days, least, most)}, to {page.end} if started today",
        "GPU-hours": _range(plan.gpu_hours, least, most),
        **({"cost": _range(plan.cost, least, most, page.currency or "")} if plan.cost is not None else {}),
        "energy of the GPUs": _range(plan.energy_mwh, least, most, "MWh at their power limit"),
        "checkpoint": f"{plan.checkpoint_bytes / 1e12:.2f} TB every {format_duration(plan.interval_s)}, "
        f"a save takes {format_duration(plan.save_s)}",
        "failures": f"{_range(plan.failures, least, most)}, one every {format_duration(plan.mtbf_h * 3600)}",
        "spare nodes": f"{plan.spare_nodes}, enough with 99 % if a repair takes 3 days",
        **(describe_task_spares(plan.in_task) if page.inputs.queue_h else {}),
        "opsctl itself": f"{own['files']:,} files after {own['starts']:,} starts in tasks of {TASK_H:g} h, "
        f"{own['file_operations_per_start']:,} file operations a start, "
        f"{own['file_operations_per_start_with_shared_python']:,} where the nodes have no Python 3.9 or newer; "
        f"{own['slurm_calls_per_hour']} calls of Slurm an hour, "
        f"up to {own['slurm_calls_per_hour_of_viewer']} more for each user who watches",
    }


def _compare_spares(page: _Overview) -> str:
    if not page.plan.in_task.count:
        return ""
    return f", without spare nodes in tasks of {TASK_H:g} h {format_percent(page.plan.effective_without_spares)}"


def _list_layouts(page: _Overview) -> Table:
    columns = ("TP", "PP", "CP", "EP", "DP", "chunks", "micro", "ZeRO", "recompute", "GiB", "fits", "s/step", "bubble")
    rows = []
    for layout in page.plan.layouts[:SHOWN_LAYOUTS]:
        topology = layout.topology
        sizes = (topology.tp, topology.pp, topology.cp, topology.ep, topology.dp, topology.chunks, topology.micro_batch)
        rows.append(
            [
                *map(str, sizes),
                "3, FSDP" if topology.zero == 3 else str(topology.zero),
                topology.recompute,
                f"{layout.memory.gib:.0f}",
                f"{layout.memory.fit_probability(page.inputs.cluster.gpu.memory_gb):.0%}",
                f"{layout.seconds:.3g}",
                format_percent(topology.bubble(page.inputs.batch)),
            ]
        )
    return listing(columns, rows, left=("recompute",))


def _range(value: float, low: float, high: float, unit: str = "") -> str:
    """Show a figure and its range: `38.1 s, 31.2 to 47.0`."""
    return f"{digits(value)}{' ' if unit else ''}{unit}, {digits(value * low)} to {digits(value * high)}"
