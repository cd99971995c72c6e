"""`opsctl test-nodes`: test that nodes compute and communicate together."""

import random
import sys
from collections.abc import Iterator

import click

from opsctl.app import App
from opsctl.base.nodesets import fold
from opsctl.cli.health import describe_verdicts
from opsctl.cli.node_view import NodeView, make_train_option, partition_option
from opsctl.cli.nodes import carry_out
from opsctl.cli.options import Amount
from opsctl.cli.output import app_json_and_dry_run, print_on_stderr, print_result, wants_json
from opsctl.nodes.collective_test.all_reduce import CollectiveTest, TestOptions, estimate_minutes, judge_nodes
from opsctl.nodes.collective_test.node_search import SearchResult, find_intermittent
from opsctl.nodes.drain_plan import plan_drain
from opsctl.nodes.health.node_state import Health


@click.command("test-nodes")
@click.argument("nodes", required=False, default="")
@make_train_option("NODES", "--partition")
@partition_option
@click.option("--python", default=sys.executable, show_default="this Python", help="Python on the nodes, with torch.")
@click.option(
    "--seconds",
    default=30.0,
    show_default=True,
    type=Amount("seconds", minimum=1, maximum=3600),
    help="Time limit of each all-reduce.",
)
@click.option(
    "--megabytes",
    default=64,
    show_default=True,
    type=click.IntRange(1, 65536),
    help="Message size of the all-reduce, in MiB.",
)
@click.option("--interface", default="", help="Network interface (default: chosen by torch).")
@click.option(
    "--pairs",
    default=3,
    show_default=True,
    type=click.IntRange(0),
    help="Rounds of pairwise bandwidth tests (0: none).",
)
@click.option(
    "--rounds",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1000),
    help="Rounds of pairs for nodes that fail only sometimes.",
)
@click.option("--drain", is_flag=True, help="Drain bad nodes, within the limits of drain-bad-nodes.")
@app_json_and_dry_run
def test_nodes(
    app: App,
    nodes: str,
    *,
    train: str,
    partition: str,
    python: str,
    seconds: float,
    megabytes: int,
    interface: str,
    pairs: int,
    rounds: int,
    drain: bool,
    dry_run: bool,
) -> int:
    """Test that nodes compute and communicate together.

    Tests NODES, or the nodes of running trains. Every node first allocates memory on each device alone; then all nodes
    run an all-reduce (NCCL, or gloo without GPUs). After a failure, halves are tested until the faulty node is found,
    or the two sides that fail only together. A node is faulty only if repeated tests fail, with different partners.
    Idle nodes are held in one job for all tests; a node that another job takes is unknown, not faulty.

    Among four nodes or more, --rounds 20 found a node that fails in half of its tests in each of 1000 simulations, and
    one that fails in a quarter of them in about 90 %.

    The test uses device memory and network: run it on idle nodes. With --drain --dry-run the test runs, and no node is
    drained. Exit 1 if a node is faulty or degraded.

    \b
    opsctl test-nodes node[001-016]
    opsctl test-nodes --partition gpu --pairs 0 --drain --dry-run
    """
    view = NodeView(app)
    chosen = view.chosen(nodes, train=train, partition=partition)
    if dry_run and not drain:
        text = f"would test {fold(chosen)}, each alone, then all together; a dry run: nothing was done"
        print_result({"would_test": chosen}, text)
        return 0
    options = TestOptions(python=python, timeout_s=seconds, size_mib=megabytes, interface=interface)
    with view.hold(chosen, minutes=estimate_minutes(options, len(chosen), pairs + rounds)) as fanout:
        test = CollectiveTest(
            fanout=fanout,
            clock=app.clock,
            addresses={node.name: node.address for node in view.nodes},
            rng=random.SystemRandom(),
            options=options,
            notify=(lambda _: None) if wants_json() else print_on_stderr,
        )
        alone = test.test_alone(chosen)
        result = test.search([node for node, verdict in alone.items() if verdict.health is Health.HEALTHY])
        intermittent = find_intermittent(result.good, test.test_groups, rounds)
        speeds = test.measure_pairs(result.good, pairs) if pairs and len(result.good) > 1 else {}
    verdicts = judge_nodes(test, alone, result, speeds, intermittent)
    excluded = frozenset(exclusion.node for exclusion in app.exclusions.now())
    plan = plan_drain(verdicts, view.nodes, app.site.health, scores={}, excluded=excluded) if drain else None
    found = {"nodes": verdicts, "apart": result.apart, "gigabytes_per_s": speeds}
    lines = [*describe_verdicts(verdicts), *_describe(test, result, speeds)]
    print_result({**found, "rounds": test.rounds, "plan": plan}, *lines)
    if plan:
        carry_out(app, view, plan, dry_run=dry_run)
    return int(any(verdict.is_bad for verdict in verdicts))


def _describe(test: CollectiveTest, result: SearchResult, speeds: dict[str, float]) -> Iterator[str]:
    for left, right in result.apart:
        yield f"{fold(left)} and {fold(right)} work alone, but not together: check the links and switches between them"
    whole = next(
        (round for round in test.rounds if round.passed == (True,) and round.gigabytes_per_s[0] is not None), None
    )
    if whole:
        yield (f"all-reduce over {len(whole.groups[0])} nodes: {whole.gigabytes_per_s[0]:.2f} GB/s")
    if speeds:
        slowest = min(speeds, key=lambda node: speeds[node])
        yield (f"in pairs: {min(speeds.values()):.2f} to {max(speeds.values()):.2f} GB/s, the slowest {slowest}")
