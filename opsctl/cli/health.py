"""`opsctl health`: check the health of nodes and show the evidence."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import NoReturn

import click
from rich.table import Table
from rich.text import Text

from opsctl.app import App
from opsctl.base.nodesets import fold
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.node_view import NodeView, all_option, partition_option, train_option
from opsctl.cli.output import app_and_json, cell, make_table, print_result, report_problems, wants_json
from opsctl.host.system import SystemRunner
from opsctl.nodes.health.node_checker import CheckedNodes
from opsctl.nodes.health.node_local import check_this_node, report
from opsctl.nodes.health.node_state import CheckResult, CheckSeverity, Health, Verdict
from opsctl.nodes.node_score import node_score

STYLES = {Health.HEALTHY: "green", Health.DEGRADED: "yellow", Health.FAULTY: "red", Health.UNKNOWN: "magenta"}
ON_REQUEST = frozenset({"dcgm", "fio"})
"""Checks that run on request only; their results are always shown."""
cluster_option = partial(dependent_option, not_with=("--node-local",))
"""An option for nodes of the cluster."""
ORDER = [Health.FAULTY, Health.DEGRADED, Health.UNKNOWN, Health.HEALTHY]


@click.command()
@click.argument("nodes", required=False, default="")
@train_option
@partition_option
@all_option
@cluster_option("--dcgm", type=click.IntRange(1, 4), help="Run dcgmi diag at this level as well.")
@click.option("--fio", default="", metavar="PATH", help="Measure this directory with fio as well.")
@cluster_option("--new-baseline", is_flag=True, help="Take the current hardware of the nodes as their baseline.")
@click.option("--node-local", is_flag=True, help="Check this machine only: no Slurm, no history; NHC's output.")
@cluster_option("--record", is_flag=True, help="For cron: exit 0 whatever the verdicts are.")
@click.option("-v", "--verbose", is_flag=True, help="Show notes and unknown checks of healthy nodes as well.")
@app_and_json
def health(
    app: App,
    nodes: str,
    *,
    train: str,
    partition: str,
    every: bool,
    dcgm: int | None,
    fio: str,
    new_baseline: bool,
    node_local: bool,
    record: bool,
    verbose: bool,
) -> int:
    """Check the health of nodes and show the evidence.

    Checks GPUs, memory, links, kernel log, mounts, network and clock of NODES, or of the nodes of running trains. With
    --train, a node needs the GPUs that the train asks for. Changes nothing on a node; --fio writes one file and removes
    it. A check that could not run is unknown: never healthy, never counted against the node. Exit 1 if a node is faulty
    or degraded.

    \b
    opsctl health node[001-004]
    opsctl health --train tiny-gpt -v
    opsctl health --partition gpu --dcgm 1
    opsctl health node001 --fio /scratch
    opsctl health --node-local
    """
    if node_local:
        _check_this_machine(app, nodes or train or partition or fio, verbose=verbose)
    if fio and not fio.startswith("/"):
        raise click.UsageError(f"--fio {fio}: must be an absolute path.")
    view = NodeView(app)
    if record and not (view.trains_on or nodes or train or partition or every):
        return 0
    chosen = view.chosen(nodes, train=train, partition=partition, every=every)
    if new_baseline:
        app.history.forget_baseline(chosen)
    checked = view.check(chosen, dcgm=dcgm or 0, fio=fio, train=train)
    data = [_row(app, checked, verdict) for verdict in checked.verdicts]
    print_result(data, *describe_verdicts(checked.verdicts, verbose=verbose))
    if not wants_json():
        report_problems(checked.problems)
    return int(not record and any(verdict.is_bad for verdict in checked.verdicts))


def _check_this_machine(app: App, selection: str, *, verbose: bool) -> NoReturn:
    """Check this machine as the prolog does, and exit with NHC's exit code."""
    if selection:
        raise click.UsageError("--node-local checks this machine: name no nodes, train, partition or directory.")
    site = app.site.health.thresholds
    verdict = check_this_node(site, runner=SystemRunner(), clock=app.clock, timeout_s=round(site.section_seconds))
    sys.exit(report(verdict, verbose=verbose, as_json=wants_json()))


def describe_verdicts(verdicts: Sequence[Verdict], *, verbose: bool = False) -> Iterator[str | Table]:
    """Yield a table with the worst nodes first, and a line per verdict."""
    rows: list[tuple[str | Text, ...]] = []
    for health in ORDER:
        group = [verdict for verdict in verdicts if verdict.health is health]
        for verdict in sorted(group, key=attrgetter("node")):
            results = [result for result in verdict.results if verbose or _matters(result, verdict)]
            results.sort(key=lambda result: list(CheckSeverity).index(result.severity))
            if health is Health.HEALTHY and not (results or verbose):
                continue
            first, *others = [_words(result) for result in results] or [("", Text(""))]
            rows.append((verdict.node, Text(health.value, style=STYLES[health]), *first))
            rows += [("", "", *words) for words in others]
    if rows:
        yield make_table(rows)
    for health in reversed(ORDER):
        names = [verdict.node for verdict in verdicts if verdict.health is health]
        if names:
            yield f"{len(names)} {health.value}: {fold(names)}"


def _matters(result: CheckResult, verdict: Verdict) -> bool:
    is_bad = result.severity in {CheckSeverity.FAULTY, CheckSeverity.DEGRADED}
    return is_bad or verdict.health is Health.UNKNOWN or result.check in ON_REQUEST


def _words(result: CheckResult) -> tuple[str, Text]:
    evidence = f"{result.check}: {result.gpu + ': ' if result.gpu else ''}{result.evidence}"
    return evidence, cell(result.remedy, "dim")


def _row(app: App, checked: CheckedNodes, verdict: Verdict) -> dict[str, object]:
    record, site = checked.records.get(verdict.node), app.site.health
    score = node_score(record, app.history.cards(), app.clock.now(), site.flaky_days) if record else 0.0
    snapshot = checked.snapshots[verdict.node]
    cards = [
        {"uuid": gpu.uuid, "serial": gpu.serial, "bus": gpu.bus} for gpu in (snapshot.smi.gpus if snapshot.smi else ())
    ]
    return {**asdict(verdict), "flakiness": score, "is_flaky": score >= site.flaky_score, "cards": cards}
