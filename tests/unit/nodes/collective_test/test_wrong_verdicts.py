"""How often the search blames a good node, or clears a bad one, in simulated clusters.

`python -m tests.unit.nodes.collective_test.test_wrong_verdicts` prints the figures of docs/how-to/first-bad-node.md.
"""

import random

import pytest

from opsctl.nodes.collective_test.all_reduce import ALONE_TRIALS
from opsctl.nodes.collective_test.node_search import search

FAULTS = ("none", "bad node", "bad link", "bad link beside a bad node")
TRANSIENT_SHARES = (0.0, 0.01, 0.03, 0.05)
SIZES = (4, 8, 16, 32, 64)


class SimulatedCluster:
    """Nodes with one fault, whose tests also fail for no lasting reason."""

    def __init__(self, fault: str, transient_share: float, rng: random.Random) -> None:
        self.transient_share, self.rng = transient_share, rng
        self.nodes = [f"n{number:03}" for number in range(rng.choice(SIZES))]
        self.bad = {rng.choice(self.nodes)} if "bad node" in fault else set()
        self.link: set[str] = set()
        if "link" in fault:
            good = [node for node in self.nodes if node not in self.bad]
            first = self.choose_neighbour() if self.bad else rng.choice(good)
            self.link = {first, rng.choice([node for node in good if node != first])}

    def choose_neighbour(self) -> str:
        """Return a good node next to the bad node, so that both are often in one group."""
        position = self.nodes.index(min(self.bad))
        near = [node for node in self.nodes[max(0, position - 2) : position + 3] if node not in self.bad]
        return self.rng.choice(near)

    def test(self, groups: list[tuple[str, ...]]) -> list[bool]:
        return [self.passes(set(group)) and self.rng.random() >= self.transient_share for group in groups]

    def passes(self, group: set[str]) -> bool:
        return not self.bad & group and not (self.link and self.link <= group)

    def fails_alone(self, node: str) -> bool:
        """Every node works alone, but for a failure without a lasting reason."""
        return all(self.rng.random() < self.transient_share for _ in range(ALONE_TRIALS)) if node else False

    def is_judged_wrongly(self) -> bool:
        """Whether a good node is called faulty, or a bad node good."""
        faulty = {node for node in self.nodes if self.fails_alone(node)}
        result = search([node for node in self.nodes if node not in faulty], self.test)
        return bool((faulty | set(result.bad)) - self.bad) or bool(self.bad & set(result.good))


def count_wrong(fault: str, transient_share: float, trials: int) -> int:
    rng = random.Random(1)
    return sum(SimulatedCluster(fault, transient_share, rng).is_judged_wrongly() for _ in range(trials))


@pytest.mark.parametrize("fault", FAULTS)
def test_below_one_percent_of_verdicts_are_wrong(fault: str) -> None:
    assert count_wrong(fault, 0.03, 400) < 4


@pytest.mark.parametrize("fault", FAULTS)
def test_lasting_faults_are_always_judged_rightly(fault: str) -> None:
    assert count_wrong(fault, 0.0, 200) == 0


if __name__ == "__main__":
    for fault in FAULTS:
        shares = [f"{count_wrong(fault, share, 5000) / 50:.2f} %" for share in TRANSIENT_SHARES]
        print(f"| {fault} | {' | '.join(shares)} |")  # noqa: T201 (the figures for the docs)
