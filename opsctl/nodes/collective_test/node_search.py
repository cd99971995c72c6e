"""Search for the nodes that make a collective test fail: test halves, then the halves of every failing half.

Pure: the caller provides the function that tests groups. A test tells only whether a group passed, never which of its
nodes failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

Group = tuple[str, ...]
Test = Callable[[Sequence[Group]], Sequence[bool]]
"""Tests disjoint groups at the same time and returns whether each group passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    bad: Group = ()
    """Nodes that fail with every good node."""
    apart: tuple[tuple[Group, Group], ...] = ()
    """Pairs of sides: each side passes alone, the two sides fail together. Usually one node a side. The cause is a link
    or a switch between the sides."""
    good: Group = ()
    unsure: Group = ()
    """Nodes that fail together while no good node is left to test them with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Halving:
    """The groups that halving ends with."""

    passed: list[Group]
    failed_pairs: list[Group]
    """Pairs that fail. A suspect without a partner is paired with itself."""
    split: list[tuple[Group, Group]]
    """Halves that both pass while their union fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspects:
    """The suspects, after a test of each suspect with a good node."""

    bad: list[str]
    unsure: list[str]
    apart: list[tuple[Group, Group]]


def search(nodes: Sequence[str], test: Test) -> SearchResult:
    """Find the bad nodes and the broken links among `nodes`. Every node must have passed alone.

    One bad node among n takes 2 + log2(n) rounds. Raises whatever `test` raises.
    """
    every_node = tuple(nodes)
    if len(every_node) < 2 or test([every_node])[0]:
        return SearchResult(good=every_node)
    halving = _halve(every_node, test)
    good = _unique_nodes(halving.passed)
    suspects = _test_suspects(halving.failed_pairs, good, test)
    good += [node for node in _unique_nodes(halving.failed_pairs) if node not in suspects.bad + suspects.unsure]
    apart = list(suspects.apart)
    for left, right in halving.split:
        good_left = tuple(node for node in left if node in good)
        good_right = tuple(node for node in right if node in good)
        if good_left and good_right and not test([good_left + good_right])[0]:
            apart.append(_narrow(good_left, good_right, test))
    return SearchResult(bad=tuple(suspects.bad), apart=tuple(apart), good=tuple(good), unsure=tuple(suspects.unsure))


def _halve(failing_group: Group, test: Test) -> _Halving:
    """Halve a failing group, then every failing half, down to pairs. Each round tests all halves at once."""
    halving = _Halving(passed=[], failed_pairs=[], split=[])
    failing = [failing_group]
    while failing:
        halving.failed_pairs.extend(group for group in failing if len(group) == 2)
        cuts = [_cut(group) for group in failing if len(group) > 2]
        failing = []
        testable = [half for half in chain.from_iterable(cuts) if len(half) > 1]
        results = dict(zip(testable, test(testable), strict=True)) if testable else {}
        for left, right in cuts:
            if len(left) == 1:
                # Half of three nodes. The node has no partner, so a good node must test it later.
                halving.failed_pairs.append((left[0], left[0]))
            halving.passed.extend(half for half in (left, right) if results.get(half, False))
            failing_halves = [half for half in (left, right) if not results.get(half, True)]
            failing += failing_halves
            if not failing_halves:
                halving.split.append((left, right))
    return halving


def _test_suspects(failed_pairs: Sequence[Group], good: Sequence[str], test: Test) -> _Suspects:
    """Test every node of the failed pairs with a good node. Both nodes of a pair may pass: then their link is bad."""
    suspects = [node for node in _unique_nodes(failed_pairs) if node not in good]
    partners = list(good) or _find_passing_pair(suspects, test)
    if not partners:
        return _Suspects(bad=[], unsure=suspects, apart=[])
    results = _test_with_partners([node for node in suspects if node not in partners], partners, test)
    bad = [node for node, passed in results.items() if not passed]
    apart: list[tuple[Group, Group]] = []
    for left, right in failed_pairs:
        if left != right and left not in bad and right not in bad:
            apart.append(((left,), (right,)))
    return _Suspects(bad=bad, unsure=[], apart=apart)


def _test_with_partners(suspects: Sequence[str], partners: Sequence[str], test: Test) -> dict[str, bool]:
    """Return whether each suspect passes with a partner. A partner is in one pair a round."""
    results: dict[str, bool] = {}
    for start in range(0, len(suspects), len(partners)):
        pairs = list(zip(suspects[start:], partners, strict=False))
        for (suspect, _), passed in zip(pairs, test(pairs), strict=True):
            results[suspect] = passed
    return results


def _find_passing_pair(nodes: Sequence[str], test: Test) -> list[str]:
    """Return two of `nodes` that pass together, or an empty list if every pair fails."""
    for pairs in tournament(nodes):
        for pair, passed in zip(pairs, test(pairs), strict=True):
            if passed:
                return list(pair)
    return []


def tournament(nodes: Sequence[str]) -> list[list[Group]]:
    """Return rounds of pairs in which every node meets every other node once (the circle method)."""
    ring: list[str | None] = list(nodes)
    if len(ring) % 2:
        ring.append(None)  # the node that meets None rests for a round
    rounds: list[list[Group]] = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        opposite = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append([(left, right) for left, right in opposite if left and right])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def _narrow(left: Group, right: Group, test: Test) -> tuple[Group, Group]:
    """Return the smallest parts of two sides that still fail together: narrow the left side, then the right side."""
    left = _narrow_side(left, right, test)
    return left, _narrow_side(right, left, test)


def _narrow_side(side: Group, other: Group, test: Test) -> Group:
    """Return the smallest part of `side` that halving finds and that still fails together with `other`."""
    while len(side) > 1:
        failing_half = next((half for half in _cut(side) if not test([half + other])[0]), None)
        if failing_half is None:
            break  # only the two halves together fail
        side = failing_half
    return side


def _cut(group: Group) -> tuple[Group, Group]:
    middle = len(group) // 2
    return group[:middle], group[middle:]


def _unique_nodes(groups: Iterable[Group]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(groups)))
