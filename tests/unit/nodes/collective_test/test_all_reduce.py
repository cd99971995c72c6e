"""The collective test on made routes to nodes: busy nodes are unknown, failures are repeated."""

import json
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from opsctl.base.ports import Answer
from opsctl.nodes.collective_test import all_reduce
from opsctl.nodes.collective_test.all_reduce import ALONE_TRIALS, CollectiveTest, judge_nodes
from opsctl.nodes.health.node_state import Health, Verdict
from opsctl.nodes.remote.fanout import Fanout
from tests.support.clocks import FakeClock

NODES = tuple(f"n{number}" for number in range(8))
TAKEN = "srun: error: Unable to allocate resources: Requested nodes are busy"


@dataclass
class Route:
    """A route on which nodes fail, and on which another job takes nodes before their test in a group."""

    name = "job"
    bad: frozenset[str] = frozenset()
    taken: frozenset[str] = frozenset()
    alone_failures: dict[str, int] = field(default_factory=dict)
    """How often the first tests alone fail, by node."""
    bandwidths: Mapping[str, float] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reaches(self, node: str) -> bool:
        return bool(node)

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        assert stdin
        assert timeout
        request = json.loads(argv[2])
        with self.lock:
            self.calls.append(node)
            if "rank" not in request:
                return self.test_alone(node)
        if node in self.taken:
            return Answer(node=node, by="", problem=TAKEN, may_have_run=False)
        speed = self.bandwidths.get(node, 10.0)
        out = f'{{"begun": true}}\n{{"gigabytes_per_s": {speed}}}\n'
        code = int(node in self.bad)
        return Answer(
            node=node, by="job", code=code, out=out if not code else '{"begun": true}\n{"error": "no route"}\n'
        )

    def test_alone(self, node: str) -> Answer:
        self.alone_failures[node] = self.alone_failures.get(node, 0) - 1
        if self.alone_failures[node] >= 0:
            return Answer(node=node, by="job", code=1, out='{"begun": true}\n{"error": "RuntimeError: CUDA"}\n')
        return Answer(node=node, by="job", code=0, out='{"begun": true}\n{"devices": 0}\n')


def judge(route: Route, *, pairs: int = 0) -> tuple[dict[str, Verdict], CollectiveTest]:
    clock = FakeClock(datetime(2026, 3, 1, tzinfo=UTC))
    test = CollectiveTest(
        fanout=Fanout(shells=[route]),
        options=all_reduce.TestOptions(python="python"),
        clock=clock,
        addresses={},
        rng=random.Random(1),
    )
    alone = test.test_alone(NODES)
    result = test.search([node for node, verdict in alone.items() if verdict.health is Health.HEALTHY])
    speeds = test.measure_pairs(result.good, pairs) if pairs else {}
    return {verdict.node: verdict for verdict in judge_nodes(test, alone, result, speeds, {})}, test


def count_health(verdicts: Mapping[str, Verdict]) -> dict[str, list[str]]:
    by_health: dict[str, list[str]] = {}
    for node, verdict in verdicts.items():
        by_health.setdefault(verdict.health.value, []).append(node)
    return by_health


def test_node_taken_by_another_job_is_unknown() -> None:
    verdicts, test = judge(Route(taken=frozenset({"n5"})))
    assert count_health(verdicts) == {"healthy": [*NODES[:5], "n6", "n7"], "unknown": ["n5"]}
    assert verdicts["n5"].results[0].evidence == f"could not be reached any more: {TAKEN}"
    assert test.rounds[-1].passed == (True,), "the other nodes are tested without n5"


def test_bad_node_is_found_beside_a_taken_node() -> None:
    verdicts, _ = judge(Route(taken=frozenset({"n5"}), bad=frozenset({"n4"})))
    assert count_health(verdicts) == {
        "healthy": ["n0", "n1", "n2", "n3", "n6", "n7"],
        "faulty": ["n4"],
        "unknown": ["n5"],
    }


def test_all_nodes_taken_are_unknown() -> None:
    verdicts, _ = judge(Route(taken=frozenset(NODES)))
    assert count_health(verdicts) == {"unknown": list(NODES)}


def test_node_that_fails_alone_once_is_healthy() -> None:
    route = Route(alone_failures={"n3": ALONE_TRIALS - 1})
    assert count_health(judge(route)[0]) == {"healthy": list(NODES)}
    assert route.calls.count("n3") == ALONE_TRIALS + 1


def test_node_that_always_fails_alone_is_faulty() -> None:
    verdicts, _ = judge(Route(alone_failures={"n3": 99}))
    assert verdicts["n3"].health is Health.FAULTY
    assert verdicts["n3"].results[0].evidence == "alone: RuntimeError: CUDA"


def test_one_slow_pair_proves_no_slow_node() -> None:
    slow = {"n3": 1.0}
    assert judge(Route(bandwidths=slow), pairs=1)[0]["n3"].health is Health.UNKNOWN
    assert judge(Route(bandwidths=slow), pairs=3)[0]["n0"].health is Health.HEALTHY
