"""Which of many nodes makes a test of all of them fail: halves, then halves of the half that fails.

Pure: it is given a way to test groups. A group passes or it does not; which node it was, nobody says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Group = tuple[str, ...]
Test = Callable[[Sequence[Group]], Sequence[bool]]
"""Tests groups that share no node, all at once: whether each passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    bad: Group = ()
    """Nodes that fail with whichever good node they are tested."""
    apart: tuple[tuple[Group, Group], ...] = ()
    """Sides that pass each by itself and fail together: a link, or a switch between them. Mostly a node on each."""
    good: Group = ()
    unsure: Group = ()
    """Nodes that fail together, where there was no good node to test them with."""


def search(nodes: Sequence[str], test: Test) -> SearchResult:
    """Find what fails among `nodes`, of which each passes alone.

    For one bad node among n it takes 2 + log2 n rounds. Raises whatever `test` raises.
    """
    whole = tuple(nodes)
    if len(whole) < 2 or test([whole])[0]:
        return SearchResult(good=whole)
    passed, failed, split = _halves([whole], test)
    good = [node for group in passed for node in group]
    bad, unsure, apart = _with_good(failed, good, test)
    paired = dict.fromkeys(node for pair in failed for node in pair)  # a node without a partner is paired with itself
    good += [node for node in paired if node not in bad and node not in unsure]
    for left, right in split:
        sides = tuple(each for each in left if each in good), tuple(each for each in right if each in good)
        if all(sides) and not test([sides[0] + sides[1]])[0]:
            apart.append(_narrow(*sides, test))
    return SearchResult(bad=tuple(bad), apart=tuple(apart), good=tuple(good), unsure=tuple(unsure))


def _halves(groups: list[Group], test: Test) -> tuple[list[Group], list[Group], list[tuple[Group, Group]]]:
    """Groups that pass, pairs that fail, and halves that pass though their whole does not; all groups given fail."""
    passed: list[Group] = []
    failed: list[Group] = []
    split: list[tuple[Group, Group]] = []
    while groups:
        failed += [group for group in groups if len(group) == 2]
        cut = [(group[: len(group) // 2], group[len(group) // 2 :]) for group in groups if len(group) > 2]
        parts = [part for halves in cut for part in halves]
        asked = [part for part in parts if len(part) > 1]
        went = dict(zip(asked, test(asked), strict=True)) if asked else {}
        groups = []
        for halves in cut:
            lonely = [part for part in halves if len(part) == 1]
            bad = [part for part in halves if not went.get(part, True)]
            passed += [part for part in halves if went.get(part, False)]
            groups += bad
            failed += [
                (part[0], part[0]) for part in lonely
            ]  # of three the one that is left: to be tested with a good one
            if not bad:
                split.append(halves)
    return passed, failed, split


def _with_good(
    failed: Sequence[Group], good: Sequence[str], test: Test
) -> tuple[list[str], list[str], list[tuple[Group, Group]]]:
    """Each node of the pairs that fail, tested with a good one: who is bad, who is unsure, who fails only together."""
    suspects = list(dict.fromkeys(node for pair in failed for node in pair if node not in good))
    known = list(good) or _first_pair(suspects, test)
    if not known:
        return [], suspects, []
    suspects = [node for node in suspects if node not in known]
    went: dict[str, bool] = {}
    while waiting := [node for node in suspects if node not in went]:
        pairs = [(node, other) for node, other in zip(waiting, known, strict=False)]
        went |= {pair[0]: fine for pair, fine in zip(pairs, test(pairs), strict=True)}
    bad = [node for node in suspects if not went[node]]
    fine = {*known, *good, *(node for node in suspects if went[node])}
    apart: list[tuple[Group, Group]] = [((a,), (b,)) for a, b in failed if a != b and {a, b} <= fine]
    return bad, [], apart


def _first_pair(nodes: Sequence[str], test: Test) -> list[str]:
    """Two of these that pass together; empty if no two do."""
    for pairs in tournament(nodes):
        for pair, fine in zip(pairs, test(pairs), strict=True):
            if fine:
                return list(pair)
    return []


def tournament(nodes: Sequence[str]) -> list[list[Group]]:
    """Rounds of pairs in which everybody meets everybody once: the circle method."""
    ring: list[str | None] = [*nodes, *([None] * (len(nodes) % 2))]
    rounds: list[list[Group]] = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        rounds.append([(a, b) for a, b in zip(ring[:half], reversed(ring[half:]), strict=True) if a and b])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def _narrow(left: Group, right: Group, test: Test) -> tuple[Group, Group]:
    """The smallest parts of two sides that still fail together, found by halving one and then the other."""
    for first in (True, False):
        while len(side := left if first else right) > 1:
            halves = side[: len(side) // 2], side[len(side) // 2 :]
            other = right if first else left
            half = next((part for part in halves if not test([part + other])[0]), None)
            if half is None:
                break  # it takes both
            left, right = (half, right) if first else (left, half)
    return left, right
