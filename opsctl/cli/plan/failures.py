"""`opsctl plan spares` and `opsctl plan simulate`."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import click
from click.core import ParameterSource

from opsctl.base.units import format_duration, format_percent
from opsctl.calc import sensitivity as calc
from opsctl.calc import spares as counts
from opsctl.calc.argument_checks import negative, not_positive, refuse
from opsctl.calc.input_influence import (
    CLUSTER_KINDS,
    Influence,
    Ranges,
    rank_inputs,
    run_uncertain,
    widest_ranges,
)
from opsctl.calc.save_interval import renewal
from opsctl.calc.simulation import CAUSES, SimulatedRun, SimulationSetup
from opsctl.cli.dependent_option import DependentOption
from opsctl.cli.output import json_option, print_json, print_text
from opsctl.cli.plan.options import failures_option, plot_option
from opsctl.cli.plan.plots import PlotLine, draw, facts, listing

INFLUENCE_SEEDS = 20
INPUT_OPTIONS = {
    "per_1000_node_days": "failures",
    "hangs": "hangs",
    "notice_h": "notice",
    "broken": "broken",
    "person_h": "person",
    "start_up_h": "start_up",
    "interval_h": "interval",
    "save_h": "save",
    "queue_h": "queue",
}
"""By input of the simulation: its option."""
OPTION_UNITS = {"notice_h": 60.0, "start_up_h": 60.0, "interval_h": 60.0, "save_h": 3600.0}
"""Units of an option in one hour."""


@click.command()
@click.option("--nodes", type=int, required=True, help="Number of nodes that train.")
@failures_option
@click.option("--repair", type=float, default=3.0, show_default=True, help="Days until a failed node is repaired.")
@click.option(
    "--confidence", type=float, default=0.99, show_default=True, help="Probability that the spares are enough."
)
@plot_option
@json_option
def spares(*, nodes: int, failures: float, repair: float, confidence: float, plot: str | None, as_json: bool) -> None:
    """Estimate failures per week and spare nodes needed.

    \b
    opsctl plan spares --nodes 48 --failures 3 --confidence 0.99
    """
    refuse(
        "spares",
        [*not_positive(nodes=nodes, failures=failures), *counts.not_a_confidence(confidence), *negative(repair=repair)],
    )
    expected = counts.out_at_once(nodes, failures, repair)
    spare_nodes = counts.spares(expected, confidence)
    figures = {
        "failures_per_week": counts.failures_per_week(nodes, failures),
        "mtbf_hours": counts.mtbf_hours(nodes, failures),
        "out_at_once": expected,
        "spares": spare_nodes,
    }
    if plot:
        points = [(float(n), p) for n, p in enumerate(islice(counts.enough(expected), 2 * spare_nodes + 4))]
        draw(
            plot,
            title=f"{nodes} nodes",
            x="spare nodes",
            y="probability that they are enough",
            curves=[PlotLine(name=f"{expected:.1f} out on average", points=points)],
        )
    if as_json:
        print_json(figures)
        return
    facts(
        {
            "failures a week": f"{figures['failures_per_week']:.1f}",
            "one every": format_duration(figures["mtbf_hours"] * 3600),
            "in repair": f"{expected:.1f} nodes on average",
            "spares": f"{spare_nodes} ({spare_nodes / nodes:.1%}), enough at any moment with {confidence:.4g}",
        }
    )


@click.command()
@click.option("--nodes", type=int, required=True, help="Number of nodes that train.")
@click.option(
    "--cluster", type=click.Choice(list(CLUSTER_KINDS)), help="Draw what is not stated from published ranges."
)
@click.option("--days", type=float, default=90.0, show_default=True, help="Length of the run, in days.")
@failures_option
@click.option("--interval", type=float, default=60.0, show_default=True, help="Minutes of work between saves.")
@click.option("--save", type=float, default=40.0, show_default=True, help="Duration of a save, in seconds.")
@click.option("--start-up", type=float, default=5.0, show_default=True, help="Minutes until a task trains.")
@click.option("--queue", type=float, default=0.0, show_default=True, help="Mean hours that a task waits in the queue.")
@click.option("--task", type=float, help="Time limit of a task, in hours (default: none).")
@click.option("--tasks", type=int, default=10, show_default=True, help="Number of queued array tasks.")
@click.option("--hangs", type=float, default=0.1, show_default=True, help="Share of failures that hang.")
@click.option("--notice", type=float, default=30.0, show_default=True, help="Minutes until a hang is noticed.")
@click.option("--broken", type=float, default=0.1, show_default=True, help="Share of failures that break a node.")
@click.option("--lemons", type=int, default=0, show_default=True, help="Number of flaky nodes.")
@click.option(
    "--lemon-factor",
    cls=DependentOption,
    only_with=("--lemons",),
    type=float,
    default=30.0,
    show_default=True,
    help="Failure rate of a flaky node, relative to others.",
)
@click.option("--spares", type=int, default=4, show_default=True, help="Number of spare nodes.")
@click.option("--repair", type=float, default=3.0, show_default=True, help="Days until a failed node is repaired.")
@click.option(
    "--person", type=float, default=8.0, show_default=True, help="Hours until a person removes a broken node."
)
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
@plot_option
@json_option
def simulate(
    *,
    nodes: int,
    cluster: str | None,
    days: float,
    failures: float,
    interval: float,
    save: float,
    start_up: float,
    queue: float,
    task: float | None,
    tasks: int,
    hangs: float,
    notice: float,
    broken: float,
    lemons: int,
    lemon_factor: float,
    spares: int,
    repair: float,
    person: float,
    guard: bool,
    seeds: int,
    with_knobs: bool,
    plot: str | None,
    as_json: bool,
) -> None:
    """Simulate months of a train in virtual time.

    Shows the effective time, the causes of lost time, the inputs by their influence, and the changes that would help
    most. Every default is a guess: with --cluster, the inputs that are not stated come from published ranges, and every
    simulated train draws its own.

    \b
    opsctl plan simulate --nodes 48 --queue 2 --task 20 --no-guard
    opsctl plan simulate --nodes 124 --days 60 --cluster young-cloud
    """
    setup = SimulationSetup(
        nodes=nodes,
        days=days,
        per_1000_node_days=failures,
        interval_h=interval / 60,
        save_h=save / 3600,
        start_up_h=start_up / 60,
        queue_h=queue,
        task_h=math.inf if task is None else task,
        tasks=tasks,
        hangs=hangs,
        notice_h=notice / 60,
        broken=broken,
        lemons=lemons,
        lemon_factor=lemon_factor,
        spares=spares,
        repair_days=repair,
        person_h=person,
        guard=guard,
    )
    ranges: Ranges = widest_ranges()
    outcomes = []
    if cluster:
        kind = CLUSTER_KINDS[cluster]
        ranges = {name: ends for name, ends in kind.ranges.items() if not _is_stated(INPUT_OPTIONS[name])}
        likely: dict[str, Any] = {name: ends[1] for name, ends in ranges.items()}
        setup = replace(
            setup,
            **likely,
            guard=guard if _is_stated("guard") else kind.guard,
            spares=spares if _is_stated("spares") else math.ceil(kind.spare_share * nodes),
        )
        outcomes = run_uncertain(setup, ranges, seeds)
    outcomes = outcomes or calc.run(setup, seeds)
    summary = calc.summary(outcomes)
    knobs, influences = [], []
    if with_knobs:
        knobs = calc.rank_knobs(setup, calc.run(setup, seeds) if cluster else outcomes)
        influences = rank_inputs(setup, ranges, seeds=min(seeds, INFLUENCE_SEEDS))
    if plot:
        _draw(plot, outcomes)
    if as_json:
        print_json(
            {
                "setup": asdict(setup),
                "summary": asdict(summary),
                "knobs": [asdict(knob) for knob in knobs],
                "closed_form": closed_form(setup),
                "cluster": cluster,
                "influences": [asdict(influence) for influence in influences],
            }
        )
        return
    _show(setup, summary)
    _show_influences(influences)
    if knobs:
        print_text("")
        rows = [[knob.change, f"{100 * knob.gain:+.2f}", f"± {100 * knob.error:.2f}"] for knob in knobs]
        listing(("what would help", "points", ""), rows, left=("what would help",))


def _is_stated(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def _show_influences(influences: list[Influence]) -> None:
    if not influences:
        return
    print_text("")
    rows = []
    for influence in influences:
        option = f"--{INPUT_OPTIONS[influence.name].replace('_', '-')}"
        unit = OPTION_UNITS.get(influence.name, 1.0)
        ends = f"{influence.least * unit:.3g} to {influence.most * unit:.3g}"
        rows.append([option, ends, f"{influence.at_least:.1%} to {influence.at_most:.1%}"])
    listing(("inputs by influence", "from", "effective time"), rows, left=("inputs by influence",))


def closed_form(setup: SimulationSetup) -> float | None:
    """Return the closed form for a train without time limit, broken nodes and flaky nodes; None for others."""
    if math.isfinite(setup.task_h) or setup.broken or setup.lemons or not math.isfinite(setup.mtbf_h):
        return None
    down = setup.hangs * setup.notice_h + setup.queue_h
    return renewal(
        mtbf_h=setup.mtbf_h, interval_h=setup.interval_h, save_h=setup.save_h, restart_h=setup.start_up_h, down_h=down
    )


def _draw(path: str, outcomes: list[SimulatedRun]) -> None:
    shares = sorted(100 * outcome.share for outcome in outcomes)
    points = [(share, 100 * (k + 1) / len(shares)) for k, share in enumerate(shares)]
    draw(
        path,
        title=f"{len(shares)} trains",
        x="effective time in %",
        y="% of the trains that do no better",
        curves=[PlotLine(name="trains", points=points)],
    )


def _show(setup: SimulationSetup, summary: calc.Summary) -> None:
    exact = closed_form(setup)
    facts(
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
