"""The collective test: every node alone, then an all-reduce over all nodes, then over ever smaller failing groups."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median_high

from opsctl.base.nodesets import fold
from opsctl.base.ports import Answer, Clock
from opsctl.base.units import format_duration
from opsctl.launch.render import templates_dir
from opsctl.nodes.collective_test.node_search import Group, SearchResult, search, tournament
from opsctl.nodes.health.node_state import CheckResult, CheckSeverity, Health, Verdict
from opsctl.nodes.remote.fanout import Fanout, merge_objects

RENDEZVOUS_PORTS = range(10_000, 20_000)
MIN_SHARE_OF_MEDIAN = 0.5
"""A node whose bandwidth is below this share of the median bandwidth is degraded."""
MAX_ERROR_CHARS = 300
MIN_MEASUREMENTS = 2
"""Pairs with different partners that make a node slow: in one slow pair, either node may be slow."""
ALONE_TRIALS = 3
"""Failed tests alone that make a node faulty."""
_LATE_ANSWER_S = 10
"""Time for an answer to arrive after the program on the node has ended itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestOptions:
    """Settings of a collective test."""

    python: str
    """Path of an interpreter with torch on the nodes."""
    timeout_s: float = 30.0
    """Time limit of one all-reduce with its rendezvous."""
    start_timeout_s: float = 90.0
    """Time limit to reach a node, import torch and initialize the devices."""
    size_mib: int = 64
    """Size of the tensor that is allocated on every device and summed."""
    interface: str = ""
    """Network interface; empty for torch's default."""

    @property
    def program_timeout_s(self) -> float:
        return self.timeout_s + self.start_timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRound:
    """Results of the groups that were tested at the same time."""

    groups: tuple[Group, ...]
    passed: tuple[bool, ...]
    gigabytes_per_s: tuple[float | None, ...]


@dataclass(slots=True, kw_only=True)
class CollectiveTest:
    """Runs tests on nodes and records every round."""

    fanout: Fanout
    options: TestOptions
    clock: Clock
    addresses: Mapping[str, str]
    """Network address by node; the node's name where an address is missing."""
    rng: random.Random
    """Chooses the rendezvous ports."""
    notify: Callable[[str], None] = lambda _: None
    """Receives one progress line for each round."""
    devices: dict[str, int] = field(default_factory=dict)
    """Number of GPUs by node, as the test alone reported them."""
    rounds: list[TestRound] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    """Last error by node."""
    measurements: dict[str, int] = field(default_factory=dict)
    """Number of measured pairs by node."""
    unreached: dict[str, str] = field(default_factory=dict)
    """Why a node could not be reached, such as another job that took the node. Such nodes are tested no more."""

    def test_alone(self, nodes: Sequence[str]) -> dict[str, Verdict]:
        """Test every node without the others: import torch, allocate and multiply on every device. Raises nothing.

        A node that fails is tested again, and is faulty only if every test fails.
        """
        verdicts: dict[str, Verdict] = {}
        remaining = list(nodes)
        for _ in range(ALONE_TRIALS):
            if not remaining:
                break
            self.notify(f"alone: {fold(remaining)}")
            answers = self._run({node: {} for node in remaining})
            verdicts |= {node: self._judge_alone(node, answer) for node, answer in answers.items()}
            remaining = [node for node in remaining if verdicts[node].health is Health.FAULTY]
        return verdicts

    def search(self, nodes: Sequence[str]) -> SearchResult:
        """Test all nodes together; if the test fails, find the nodes that make it fail."""
        return search(nodes, self.test_groups)

    def measure_pairs(self, nodes: Sequence[str], rounds: int) -> dict[str, float]:
        """Return the median bandwidth of each node in GB/s over `rounds` rounds of pairs, each with new partners."""
        bandwidths: dict[str, list[float]] = {node: [] for node in nodes}
        for pairs in tournament(nodes)[:rounds]:
            testable = [pair for pair in pairs if self._drop_unreached(pair) == pair]
            if not testable:
                continue
            self._run_groups(testable)
            for pair, bandwidth in zip(testable, self.rounds[-1].gigabytes_per_s, strict=True):
                if bandwidth is None:
                    continue
                for node in pair:
                    bandwidths[node].append(bandwidth)
        self.measurements = {node: len(values) for node, values in bandwidths.items()}
        return {node: median_high(values) for node, values in bandwidths.items() if values}

    def test_groups(self, groups: Sequence[Group]) -> list[bool | None]:
        """Run an all-reduce over every group at the same time. Return whether each group passed.

        A group of which a node cannot be reached is tested again without this node. None for a group of which fewer
        than two nodes are left: a node that was not reached says nothing about the others.
        """
        passed: dict[Group, bool | None] = {}
        remaining = list(groups)
        while remaining:
            reached = {group: self._drop_unreached(group) for group in remaining}
            passed |= {group: None for group, nodes in reached.items() if len(nodes) < 2}
            testable = [group for group in remaining if len(reached[group]) >= 2]
            results = self._run_groups([reached[group] for group in testable]) if testable else []
            passed |= dict(zip(testable, results, strict=True))
            remaining = [group for group in testable if self._drop_unreached(group) != reached[group]]
        return [passed[group] for group in groups]

    def _drop_unreached(self, group: Group) -> Group:
        return tuple(node for node in group if node not in self.unreached)

    def _run_groups(self, groups: Sequence[Group]) -> list[bool]:
        """Run one round, and record which nodes could not be reached."""
        self.notify(" ".join(["together:", *(fold(group) for group in groups)]))
        requests: dict[str, dict[str, object]] = {}
        for group, port in zip(groups, self.rng.sample(RENDEZVOUS_PORTS, len(groups)), strict=True):
            requests |= self._group_requests(group, port)
        answers = self._run(requests)
        passed: list[bool] = []
        bandwidths: list[float | None] = []
        for group in groups:
            group_passed = all(answers[node].code == 0 for node in group)
            passed.append(group_passed)
            bandwidths.append(_bandwidth(answers[group[0]]) if group_passed else None)
        for node, answer in answers.items():
            if error := _error(answer):
                self.errors[node] = error
            if answer.code is None and not answer.may_have_run:
                self.unreached[node] = error
        self.rounds.append(
            TestRound(groups=tuple(groups), passed=tuple(passed), gigabytes_per_s=tuple(bandwidths)),
        )
        return passed

    def _group_requests(self, group: Group, port: int) -> dict[str, dict[str, object]]:
        """Return the program's argument for each node of a group. Every node uses the same number of devices."""
        common: dict[str, object] = {
            "world": len(group),
            "port": port,
            "devices": min(self.devices.get(node, 0) for node in group),
            "master": self.addresses.get(group[0]) or group[0],
        }
        return {node: {"rank": rank, **common} for rank, node in enumerate(group)}

    def _run(self, requests: Mapping[str, Mapping[str, object]]) -> dict[str, Answer]:
        """Run the test program on every node at the same time. The ranks wait for one another."""
        options = self.options
        program = (templates_dir() / "nodes" / "all_reduce.py").read_text()
        arguments = {node: {**asdict(options), **request} for node, request in requests.items()}
        timeout = options.program_timeout_s + _LATE_ANSWER_S
        return self.fanout.run_program(program, arguments, python=options.python, timeout=timeout)

    def _judge_alone(self, node: str, answer: Answer) -> Verdict:
        """Judge a node's test alone. A node that was not reached, or that has no torch, is unknown, not faulty."""
        fields = merge_objects(answer.out)
        devices = fields.get("devices")
        self.devices[node] = devices if isinstance(devices, int) else 0
        if answer.code == 0:
            return self.verdict(node, Health.HEALTHY, by=answer.by)
        if not fields.get("begun"):
            remedy = "--python PATH names an interpreter with torch on the node" if answer.code is not None else ""
            return self.verdict(node, Health.UNKNOWN, _error(answer), by=answer.by, remedy=remedy)
        error = fields.get("error") or (
            f"a device did not answer within {format_duration(self.options.program_timeout_s)}"
        )
        return self.verdict(
            node, Health.FAULTY, f"alone: {error}", by=answer.by, remedy="opsctl health shows the node's GPUs"
        )

    def verdict(self, node: str, health: Health, evidence: str = "", *, by: str = "", remedy: str = "") -> Verdict:
        """Return a verdict of the check `test-nodes`, without a result where there is no evidence."""
        severities = {Health.FAULTY: CheckSeverity.FAULTY, Health.DEGRADED: CheckSeverity.DEGRADED}
        severity = severities.get(health, CheckSeverity.UNKNOWN)
        result = CheckResult(severity, evidence, remedy, check="test-nodes")
        return Verdict(node=node, health=health, results=(result,) if evidence else (), at=self.clock.now(), by=by)


def estimate_minutes(options: TestOptions, nodes: int, pairs: int) -> int:
    """Return a time limit for all tests of `nodes` nodes, in minutes: enough for some failures, not for many."""
    rounds = ALONE_TRIALS + 4 + max(1, nodes).bit_length() + pairs
    return math.ceil(rounds * (options.program_timeout_s + _LATE_ANSWER_S) / 60)


def judge_nodes(
    test: CollectiveTest,
    alone: Mapping[str, Verdict],
    result: SearchResult,
    speeds: Mapping[str, float],
    intermittent: Mapping[str, int],
) -> list[Verdict]:
    """Return one verdict a node, from all rounds. Nodes that fail only with some other node are not blamed."""
    verdicts = dict(alone)

    def judge(node: str, health: Health, evidence: str, remedy: str = "") -> None:
        verdicts[node] = test.verdict(node, health, evidence, by=alone[node].by, remedy=remedy)

    median = median_high(list(speeds.values())) if speeds else 0.0
    for node, speed in speeds.items():
        if speed < MIN_SHARE_OF_MEDIAN * median:
            is_proved = test.measurements.get(node, 0) >= MIN_MEASUREMENTS
            health, remedy = (Health.DEGRADED, "") if is_proved else (Health.UNKNOWN, "measure more: --pairs 3")
            judge(node, health, f"{speed:.2f} GB/s in pairs; the median of all nodes is {median:.2f} GB/s", remedy)
    for node in result.bad:
        judge(node, Health.FAULTY, f"all-reduce fails with every other node: {test.errors.get(node) or 'no answer'}")
    for node, count in intermittent.items():
        judge(node, Health.FAULTY, f"all-reduce in pairs failed {count} times, with several other nodes")
    for node in result.unsure:
        evidence = f"all-reduce of {fold(result.unsure)} fails; without a good node the bad node is not known"
        judge(node, Health.UNKNOWN, evidence, "add a good node to the test")
    for node, problem in test.unreached.items():
        remedy = "test again once no other job has the node"
        judge(node, Health.UNKNOWN, f"could not be reached any more: {problem}", remedy)
    return list(verdicts.values())


def _bandwidth(answer: Answer) -> float | None:
    """Return the bandwidth in GB/s, None if the program printed none."""
    bandwidth = merge_objects(answer.out).get("gigabytes_per_s")
    return float(bandwidth) if isinstance(bandwidth, int | float) else None


def _error(answer: Answer) -> str:
    """Return why the test failed on a node, an empty string if it passed."""
    if answer.code == 0:
        return ""
    last_line = answer.err.strip().splitlines()[-1:] or [f"exit code {answer.code}"]
    error = merge_objects(answer.out).get("error") or answer.problem or last_line[0]
    return str(error)[:MAX_ERROR_CHARS]
