"""`opsctl plan spares` and `opsctl plan simulate`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table

from opsctl.base.errors import InputError
from opsctl.base.tables import read_package_table
from opsctl.base.units import format_duration, format_percent
from opsctl.calc import sensitivity as calc
from opsctl.calc import spares as counts
from opsctl.calc.argument_checks import negative, not_positive, refuse
from opsctl.calc.save_interval import renewal
from opsctl.calc.simulation import CAUSES, SimulationSetup
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import DAYS, HOURS, Amount
from opsctl.cli.plan.estimate import Estimate, facts, listing, prints_estimate
from opsctl.cli.plan.options import failures_option
from opsctl.state.drill_score import Drilled
from opsctl.state.files import read_json
from opsctl.state.records import decode

INFLUENCE_SEEDS = 20
MORE_SPARE_NODES = 2
MAX_CARD_BYTES = 4 << 20


@click.command()
@click.option("--nodes", type=int, required=True, help="Number of nodes that train.")
@failures_option
@click.option("--repair", type=DAYS, default=3.0, show_default=True, help="Time until a failed node is repaired.")
@click.option("--confidence", default=0.99, show_default=True, help="Probability that the spares are enough.")
@click.option("--queue", type=HOURS, default=0.0, show_default=True, help="Time in the queue after the loss of a node.")
@click.option("--task", type=HOURS, default=20.0, show_default=True, help="Time limit of a task.")
@prints_estimate
def spares(*, nodes: int, failures: float, repair: float, confidence: float, queue: float, task: float) -> Estimate:
    """Estimate failures per week and spare nodes needed.

    With --queue, proposes how many spare nodes each task should have ([slurm] spare_nodes), with their cost and gain.
    A spare node cannot replace the first node of a task, on which the guard runs: the death of the first node costs
    the allocation.

    \b
    opsctl plan spares --nodes 48 --failures 3 --confidence 0.99
    opsctl plan spares --nodes 64 --queue 8 --task 20
    """
    positive, zero = not_positive(nodes=nodes, failures=failures, task=task), negative(repair=repair, queue=queue)
    refuse("spares", [*positive, *counts.not_a_confidence(confidence), *zero])
    in_task = counts.plan_task_spares(nodes, failures, task_h=task, queue_h=queue) if queue else None
    expected = counts.out_at_once(nodes, failures, repair)
    spare_nodes = counts.spares(expected, confidence)
    per_week, mtbf_h = counts.failures_per_week(nodes, failures), counts.mtbf_hours(nodes, failures)
    return Estimate(
        data={
            "failures_per_week": per_week,
            "mtbf_hours": mtbf_h,
            "out_at_once": expected,
            "spares": spare_nodes,
            "in_task": in_task,
        },
        shown=[
            facts(
                {
                    "failures a week": f"{per_week:.1f}",
                    "one every": format_duration(mtbf_h * 3600),
                    "in repair": f"{expected:.1f} nodes on average",
                    "spares": f"{spare_nodes} ({spare_nodes / nodes:.1%}), enough at any moment with {confidence:.4g}",
                    **(describe_task_spares(in_task) if in_task else {}),
                }
            )
        ],
    )


def describe_task_spares(plan: counts.TaskSpares) -> dict[str, str]:
    """Return what spare nodes in each task cost and gain, for people."""
    saved = f"{plan.replaced:.2g} of {plan.lost:.2g} lost nodes a task replaced"
    return {
        "spare_nodes": f"{plan.count} in each task, {plan.cost:.1%} of the node hours",
        "gain": f"{saved}, {format_duration(plan.saved_h * 3600)} in the queue saved",
        "not replaced": "the first node of a task: its death costs the allocation",
    }


@dataclass(frozen=True, slots=True)
class _Input:
    """An option of `simulate` that sets one field of SimulationSetup."""

    field: str
    default: float
    help: str
    unit: str = ""
    """Unit of a duration, as in `Amount`."""
    units: int = 1
    """Units of the option in one unit of the field."""
    only_with: tuple[str, ...] = ()


INPUTS = {option: _Input(**row) for option, row in read_package_table("cli/plan/failures.toml").items()}
OPTION_OF_FIELD = {entry.field: option for option, entry in INPUTS.items()}


def _input_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of INPUTS; `function` gets the fields of SimulationSetup."""
    for option, entry in reversed(INPUTS.items()):
        settings: dict[str, Any] = {"default": entry.default, "help": entry.help, "only_with": entry.only_with}
        settings |= {"type": Amount(entry.unit)} if entry.unit else {}
        function = dependent_option(option, entry.field, show_default=True, **settings)(function)
    return function


@click.command()
@click.option("--nodes", type=int, required=True, help="Number of nodes that train.")
@click.option(
    "--cluster", type=click.Choice(list(calc.CLUSTER_KINDS)), help="Draw what is not stated from published ranges."
)
@_input_options
@click.option("--task", type=HOURS, help="Time limit of a task (default: none).")
@click.option("--guard/--no-guard", default=True, show_default=True, help="Simulate with the guard of opsctl.")
@click.option(
    "--seeds", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Number of simulated trains."
)
@click.option(
    "--knobs/--no-knobs",
    "with_knobs",
    default=True,
    show_default=True,
    help="Simulate changes that could help as well.",
)
@click.option("--from-drill", type=click.Path(path_type=Path), help="Score card whose times to take (drill --json).")
@prints_estimate
def simulate(
    *, cluster: str | None, task: float | None, seeds: int, with_knobs: bool, from_drill: Path | None, **inputs: Any
) -> Estimate:
    """Simulate months of a train in virtual time.

    Shows the effective time, the causes of lost time, the inputs by their influence, and the changes that would help
    most. Every default is a guess: with --cluster, the inputs that are not stated come from published ranges, and every
    simulated train draws its own.

    \b
    opsctl plan simulate --nodes 48 --queue 2 --task 20 --no-guard
    opsctl plan simulate --nodes 124 --days 60 --cluster young-cloud
    opsctl plan simulate --nodes 64 --from-drill card.json
    """
    for entry in INPUTS.values():
        if entry.units != 1:
            inputs[entry.field] /= entry.units
    setup = SimulationSetup(task_h=math.inf if task is None else task, **inputs)
    ranges: calc.Ranges = calc.widest_ranges()
    drawn: calc.Ranges = {}
    is_open = _list_open()
    measured = read_drill(from_drill, is_open) if from_drill else {}
    setup = replace(setup, **measured)
    if cluster:
        setup, drawn = _complete(setup, calc.CLUSTER_KINDS[cluster], is_open - measured.keys())
        ranges = drawn
    outcomes = calc.run_uncertain(setup, drawn, seeds)
    summary = calc.summary(outcomes)
    knobs, influences = [], []
    if with_knobs:
        knobs = calc.rank_knobs(setup, calc.run(setup, seeds) if cluster else outcomes)
        influences = calc.rank_inputs(setup, ranges, seeds=min(seeds, INFLUENCE_SEEDS))
    exact = closed_form(setup)
    return Estimate(
        data={
            "setup": setup,
            "summary": summary,
            "knobs": knobs,
            "closed_form": exact,
            "cluster": cluster,
            "influences": influences,
        },
        shown=[
            _describe(setup, summary, exact),
            *([_describe_drill(setup, summary, drawn)] if measured else []),
            *_list_influences(influences),
            *_list_knobs(knobs),
        ],
    )


def _list_open() -> set[str]:
    """Return the inputs that the command line does not state."""
    source_of = click.get_current_context().get_parameter_source
    defaults = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return {name for name in ("guard", *OPTION_OF_FIELD) if source_of(name) in defaults}


def read_drill(card: Path, is_open: set[str]) -> dict[str, Any]:
    """Return the open inputs that a score card has measured, as medians over its drills. Raises InputError."""
    try:
        scores = [decode(Drilled, row) for row in read_json(card, MAX_CARD_BYTES)]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{card}: not a score card: {error}", hint="opsctl drill --json >card.json") from error
    times_s = {
        "notice_h": [score.noticed_s for score in scores if score.cause == "hang" and score.noticed_s is not None],
        "start_up_h": [score.back_s - (score.noticed_s or 0) for score in scores if score.action and score.back_s],
        "save_h": [score.save_s for score in scores if score.save_s is not None],
    }
    if not any(times_s.values()):
        raise InputError(f"{card}: no drill measured a time", hint="opsctl drill --json >card.json")
    return {name: median(values) / 3600 for name, values in times_s.items() if values and name in is_open}


def _describe_drill(setup: SimulationSetup, summary: calc.Summary, drawn: calc.Ranges) -> str:
    more = replace(setup, spare_nodes=setup.spare_nodes + MORE_SPARE_NODES)
    with_more = calc.summary(calc.run_uncertain(more, drawn, summary.seeds)).mean
    whose = "Meta's " if setup.per_1000_node_days == INPUTS["--failures"].default else ""
    return (
        f"\nWith the times of the drill and {whose}{setup.per_1000_node_days:g} failures per 1000 node-days, "
        f"{setup.nodes} nodes will be effective {summary.mean:.1%} ± {100 * summary.spread:.1f}; "
        f"with {MORE_SPARE_NODES} more spare nodes in each task {with_more:.1%}."
    )


def _complete(setup: SimulationSetup, kind: calc.ClusterKind, is_open: set[str]) -> tuple[SimulationSetup, calc.Ranges]:
    """Return the setup and the ranges of the open inputs, by the kind of cluster."""
    ranges = {name: ends for name, ends in kind.ranges.items() if name in is_open}
    filled: dict[str, Any] = {name: ends[1] for name, ends in ranges.items()}
    if "guard" in is_open:
        filled["guard"] = kind.guard
    if "spares" in is_open:
        filled["spares"] = math.ceil(kind.spare_share * setup.nodes)
    return replace(setup, **filled), ranges


def _list_influences(influences: list[calc.Influence]) -> list[str | Table]:
    rows = []
    for influence in influences:
        option = OPTION_OF_FIELD[influence.name]
        units = INPUTS[option].units
        ends = f"{influence.least * units:.3g} to {influence.most * units:.3g}"
        rows.append([option, ends, f"{influence.at_least:.1%} to {influence.at_most:.1%}"])
    title = "inputs by influence"
    return ["", listing((title, "from", "effective time"), rows, left=(title,))] if rows else []


def _list_knobs(knobs: list[calc.Knob]) -> list[str | Table]:
    rows = [[knob.change, f"{100 * knob.gain:+.2f}", f"± {100 * knob.error:.2f}"] for knob in knobs]
    return ["", listing(("what would help", "points", ""), rows, left=("what would help",))] if rows else []


def closed_form(setup: SimulationSetup) -> float | None:
    """Return the closed form for a train without time limit, broken nodes and flaky nodes; None for others."""
    if math.isfinite(setup.task_h) or setup.broken or setup.flaky_nodes or not math.isfinite(setup.mtbf_h):
        return None
    down = setup.hangs * setup.notice_h + (0.0 if setup.guard else setup.queue_h)  # the guard keeps the nodes
    return renewal(
        mtbf_h=setup.mtbf_h, interval_h=setup.interval_h, save_h=setup.save_h, restart_h=setup.start_up_h, down_h=down
    )


def _describe(setup: SimulationSetup, summary: calc.Summary, exact: float | None) -> Table:
    return facts(
        {
            "effective time": f"{summary.mean:.1%}, {summary.low:.1%} to {summary.high:.1%} in 8 of 10 trains",
            **({} if exact is None else {"closed form": f"{exact:.1%}"}),
            "without the queue": f"{summary.without_queue:.1%}",
            **{f"  {cause}": format_percent(summary.lost[cause]) for cause in CAUSES},
            "failures": f"{summary.failures:.1f}, one every {format_duration(setup.mtbf_h * 3600)} of running",
            "tasks": f"{summary.attempts:.1f}",
            "nodes taken out": f"{summary.removed:.1f}",
        }
    )
