"""`opsctl test-nodes`: do these nodes work together, and if not, which of them is it?"""

from __future__ import annotations

import random
import sys
from dataclasses import asdict

import click

from opsctl.app import App
from opsctl.cli.health import show
from opsctl.cli.node_view import NodeView, partition_option, train_option
from opsctl.cli.nodes import carry_out
from opsctl.cli.output import dry_run_option, json_option, print_json, say
from opsctl.nodes.collective_test.all_reduce import CollectiveTest, TestOptions, judge_nodes
from opsctl.nodes.collective_test.node_search import SearchResult
from opsctl.nodes.drain_plan import plan_drain
from opsctl.nodes.health.node_state import Health, Verdict
from opsctl.nodesets import fold


@click.command("test-nodes")
@click.argument("nodes", required=False, default="")
@train_option
@partition_option
@click.option("--python", default=sys.executable, show_default="this one", help="The interpreter there, with torch.")
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(1, 3600), help="For each all-reduce.")
@click.option("--megabytes", default=64, show_default=True, type=click.IntRange(1, 65536), help="What is summed.")
@click.option("--interface", default="", help="The network interface to use; torch's own choice if absent.")
@click.option("--pairs", default=3, show_default=True, type=click.IntRange(0), help="Rounds of pairs, for bandwidths.")
@click.option("--drain", is_flag=True, help="Drain what is faulty or degraded, with the limits of drain-bad-nodes.")
@dry_run_option
@json_option
@click.pass_obj
def test_nodes(
    app: App, nodes: str, *, train: str, partition: str, python: str, seconds: float, megabytes: int, interface: str,
    pairs: int, drain: bool, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Test NODES, or those of the trains that run, alone and together: allocate on every device, then sum a tensor over
    all of them (NCCL; gloo where there are no GPUs). Where that fails, halves are tested, down to the node or to the
    two sides that fail only together.

    It takes part of the devices' memory and of the network: best on idle nodes. Exit 1 if a node is faulty or degraded.

    \b
    opsctl test-nodes node[001-016]
    opsctl test-nodes --partition gpu --pairs 0 --drain --dry-run
    """
    view = NodeView(app)
    chosen = view.chosen(nodes, train=train, partition=partition)
    if dry_run and not drain:
        text = f"would test {fold(chosen)}, each alone, then all together; a dry run: nothing was done"
        print_json({"would_test": chosen}) if as_json else say(text)
        return
    addresses = {node.name: node.address for node in view.nodes}
    test = CollectiveTest(
        fanout=view.fanout(), clock=app.clock, addresses=addresses, rng=random.SystemRandom(),
        options=TestOptions(python=python, timeout_s=seconds, size_mib=megabytes, interface=interface),
        notify=(lambda _: None) if as_json else lambda line: click.echo(line, err=True),
    )  # fmt: skip
    alone = test.test_alone(chosen)
    result = test.search([node for node, verdict in alone.items() if verdict.health is Health.HEALTHY])
    speeds = test.measure_pairs(result.good, pairs) if pairs and len(result.good) > 1 else {}
    verdicts = judge_nodes(test, alone, result, speeds)
    excluded = frozenset(exclusion.node for exclusion in app.exclusions.now())
    plan = plan_drain(verdicts, view.nodes, app.site.health, scores={}, excluded=excluded) if drain else None
    if as_json:
        rounds = [asdict(round) for round in test.rounds]
        print_json({"nodes": [asdict(each) for each in verdicts], "apart": result.apart, "gigabytes_per_s": speeds,
                    "rounds": rounds, "plan": asdict(plan) if plan else None})  # fmt: skip
    else:
        _show(test, result, speeds, verdicts)
    if plan:
        carry_out(app, view, plan, quiet=as_json, dry_run=dry_run)
    if any(each.is_bad for each in verdicts):
        click.get_current_context().exit(1)


def _show(test: CollectiveTest, result: SearchResult, speeds: dict[str, float], verdicts: list[Verdict]) -> None:
    show(verdicts)
    for left, right in result.apart:
        say(f"{fold(left)} and {fold(right)} each work, but not together: look at the links and switches between them")
    whole = next(
        (round for round in test.rounds if round.passed == (True,) and round.gigabytes_per_s[0] is not None), None
    )
    if whole:
        say(f"all-reduce over {len(whole.groups[0])} nodes: {whole.gigabytes_per_s[0]:.2f} GB/s")
    if speeds:
        slowest = min(speeds, key=lambda node: speeds[node])
        say(f"in pairs: {min(speeds.values()):.2f} to {max(speeds.values()):.2f} GB/s, the slowest {slowest}")
