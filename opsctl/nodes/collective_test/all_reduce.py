"""The test itself: every node alone, then all of them together, then whatever part of them fails."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opsctl.nodes.collective_test.node_search import Group, SearchResult, search, tournament
from opsctl.nodes.health.node_state import CheckResult, Health, Severity, Verdict
from opsctl.nodes.remote.fanout import Fanout
from opsctl.nodesets import fold
from opsctl.ports import Answer, Clock
from opsctl.render import templates_dir

PORTS = range(10_000, 20_000)
SLOW = 0.5
"""A node whose bandwidth is less than this share of the median of all is degraded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestOptions:
    """How nodes are tested."""

    python: str
    """The interpreter there, which has torch."""
    seconds: float = 30.0
    """What one all-reduce of all, with its rendezvous, may take."""
    start_seconds: float = 90.0
    """To get to a node, to import torch there, and to wake its devices."""
    megabytes: int = 64
    """What is summed, and allocated on every device."""
    interface: str = ""
    """The network interface to use; torch's own choice if empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRound:
    """Groups that were tested at the same time."""

    groups: tuple[Group, ...]
    passed: tuple[bool, ...]
    gigabytes_per_s: tuple[float | None, ...]


@dataclass(slots=True, kw_only=True)
class CollectiveTest:
    """Tests nodes; keeps what every round came to."""

    fanout: Fanout
    ask: TestOptions
    clock: Clock
    addresses: Mapping[str, str]
    dice: random.Random
    notify: Callable[[str], None] = lambda _: None
    devices: dict[str, int] = field(default_factory=dict)
    rounds: list[TestRound] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    """By node, what it said last when a test failed."""

    def alone(self, nodes: Sequence[str]) -> dict[str, Verdict]:
        """Each node by itself: is torch there, does every device hold and reckon. Raises nothing."""
        self.notify(f"alone: {fold(nodes)}")
        answers = self._run({node: {} for node in nodes})
        return {node: self._of_one(node, answer) for node, answer in answers.items()}

    def search(self, nodes: Sequence[str]) -> SearchResult:
        """All together, and where that fails, which of them."""
        return search(nodes, self.test)

    def pairs(self, nodes: Sequence[str], rounds: int) -> dict[str, float]:
        """The median bandwidth of each node in `rounds` rounds of pairs, in GB/s; every round with other partners."""
        found: dict[str, list[float]] = {node: [] for node in nodes}
        for groups in tournament(nodes)[:rounds]:
            self.test(groups)
            for group, speed in zip(groups, self.rounds[-1].gigabytes_per_s, strict=True):
                for node in group if speed is not None else ():
                    found[node].append(speed or 0.0)
        return {node: sorted(speeds)[len(speeds) // 2] for node, speeds in found.items() if speeds}

    def test(self, groups: Sequence[Group]) -> list[bool]:
        """An all-reduce over each group, all at the same time: whether each ended well."""
        self.notify(" ".join(["together:", *(fold(group) for group in groups)]))
        asked: dict[str, dict[str, object]] = {}
        for group, port in zip(groups, self.dice.sample(PORTS, len(groups)), strict=True):
            devices = min(self.devices.get(node, 0) for node in group)
            for rank, node in enumerate(group):
                asked[node] = {"rank": rank, "world": len(group), "port": port, "devices": devices,
                               "master": self.addresses.get(group[0]) or group[0]}  # fmt: skip
        answers = self._run(asked)
        passed = tuple(all(answers[node].code == 0 for node in group) for group in groups)
        speeds = tuple(_speed(answers[group[0]]) if fine else None for group, fine in zip(groups, passed, strict=True))
        self.errors |= {node: why for node, answer in answers.items() if (why := _why(answer))}
        self.rounds.append(TestRound(groups=tuple(groups), passed=passed, gigabytes_per_s=speeds))
        return list(passed)

    def _run(self, mapping: Mapping[str, Mapping[str, object]]) -> dict[str, Answer]:
        ask = self.ask
        program = (templates_dir() / "nodes" / "all_reduce.py").read_text()
        common = {"seconds": ask.seconds, "start_seconds": ask.start_seconds, "megabytes": ask.megabytes,
                  "interface": ask.interface}  # fmt: skip
        # All at once, however many: they wait for one another.
        everybody = replace(self.fanout, parallel=max(1, len(mapping)))
        limit = ask.seconds + ask.start_seconds + 10

        def run(node: str) -> Answer:
            argv = (ask.python, "-", json.dumps(common | dict(mapping[node])))
            return everybody.one(node, argv, timeout=limit, stdin=program)

        return everybody.ask_each(mapping, run)

    def _of_one(self, node: str, answer: Answer) -> Verdict:
        fields = _said(answer)
        devices = fields.get("devices")
        self.devices[node] = devices if isinstance(devices, int) else 0
        if answer.code == 0:
            return self.verdict(node, Health.HEALTHY, by=answer.by)
        if not fields.get("begun"):
            # Not reached, or no torch: that says nothing of the node's devices.
            remedy = "give the node's interpreter with torch by --python" if answer.code is not None else ""
            return self.verdict(node, Health.UNKNOWN, _why(answer), by=answer.by, remedy=remedy)
        why = str(
            fields.get("error") or f"a device did not answer in {self.ask.seconds + self.ask.start_seconds:.0f} s"
        )
        return self.verdict(node, Health.FAULTY, f"alone: {why}", by=answer.by, remedy="opsctl health shows its cards")

    def verdict(self, node: str, health: Health, why: str = "", *, by: str = "", remedy: str = "") -> Verdict:
        severities = {Health.FAULTY: Severity.FAULTY, Health.DEGRADED: Severity.DEGRADED}
        severity = severities.get(health, Severity.UNKNOWN)
        results = (CheckResult(check="test-nodes", severity=severity, evidence=why, remedy=remedy),) if why else ()
        return Verdict(node=node, health=health, results=results, at=self.clock.now(), by=by)


def judge_nodes(
    test: CollectiveTest, alone: Mapping[str, Verdict], result: SearchResult, speeds: Mapping[str, float]
) -> list[Verdict]:
    """What all rounds say of each node. Who only fails together with somebody is no bad node."""
    verdicts = dict(alone)
    median = sorted(speeds.values())[len(speeds) // 2] if speeds else 0.0
    for node, speed in speeds.items():
        if speed < SLOW * median:
            why = f"{speed:.2f} GB/s in pairs, the median of all is {median:.2f}"
            verdicts[node] = test.verdict(node, Health.DEGRADED, why, by=alone[node].by)
    for node in result.bad:
        why = f"all-reduce fails with every other node: {test.errors.get(node) or 'no answer'}"
        verdicts[node] = test.verdict(node, Health.FAULTY, why, by=alone[node].by)
    for node in result.unsure:
        why = f"all-reduce of {fold(result.unsure)} fails, and no good node was there to tell which it is"
        verdicts[node] = test.verdict(node, Health.UNKNOWN, why, by=alone[node].by, remedy="add a node to the test")
    return list(verdicts.values())


def _said(answer: Answer) -> dict[str, object]:
    fields: dict[str, object] = {}
    for line in answer.out.splitlines():
        try:
            given = json.loads(line)
        except ValueError:
            continue
        fields |= given if isinstance(given, dict) else {}
    return fields


def _speed(answer: Answer) -> float | None:
    speed = _said(answer).get("gigabytes_per_s")
    return float(speed) if isinstance(speed, int | float) else None


def _why(answer: Answer) -> str:
    if answer.code == 0:
        return ""
    last = answer.err.strip().splitlines()[-1:] or [f"exit code {answer.code}"]
    return str(_said(answer).get("error") or answer.problem or last[0])[:300]
