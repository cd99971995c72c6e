"""Search for the nodes that make a collective test fail: test halves, then the halves of every failing half.

Pure: the caller provides the function that tests groups. A test tells only whether a group passed, never which of its
nodes failed, and a test may fail once for no lasting reason. So halving finds suspects only. A suspect is bad if it
fails with `PARTNERS` good partners and passes with none; a link is bad if its two nodes fail together again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle, islice

Group = tuple[str, ...]
Test = Callable[[Sequence[Group]], Sequence[bool | None]]
"""Tests disjoint groups at the same time and returns whether each group passed; None for a group without a result."""
PARTNERS = 3
"""Partners with which a bad suspect has failed. With fewer good nodes: all, twice each, as one link may be broken."""
MAX_TRIALS = 5
"""Tests of one suspect. A suspect without a passed test and with fewer failures is unsure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    bad: Group = ()
    """Nodes that fail with every good node."""
    apart: tuple[tuple[Group, Group], ...] = ()
    """Pairs of sides: each side passes alone, the two sides fail together. Usually one node a side. The cause is a link
    or a switch between the sides."""
    good: Group = ()
    unsure: Group = ()
    """Nodes that fail together while no good node is left to test them with, or whose tests have no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Halving:
    """The groups that halving ends with."""

    passed: list[Group]
    failed_pairs: list[Group]
    """Pairs that fail. A suspect without a partner is paired with itself."""
    split: list[tuple[Group, Group]]
    """Halves that both pass while their union fails."""


@dataclass(slots=True, kw_only=True)
class _Trials:
    """The tests of the suspects with good partners."""

    partners: int
    """Number of good partners."""
    passed: set[str] = field(default_factory=set)
    failed: dict[str, list[str]] = field(default_factory=dict)
    """The partners with which each suspect failed."""

    def is_open(self, suspect: str) -> bool:
        return suspect not in self.passed and not self.is_bad(suspect)

    def is_bad(self, suspect: str) -> bool:
        failed = self.failed.get(suspect, [])
        is_proved = len(set(failed)) >= PARTNERS or len(failed) >= 2 * self.partners
        return bool(failed) and is_proved and suspect not in self.passed


def search(nodes: Sequence[str], test: Test) -> SearchResult:
    """Find the bad nodes and the broken links among `nodes`. Every node must have passed alone.

    One bad node among n takes 4 + log2(n) rounds. Raises whatever `test` raises.
    """
    every_node = tuple(nodes)
    if len(every_node) < 2 or not _fails(every_node, test):
        return SearchResult(good=every_node)
    halving = _halve(every_node, test)
    good = _unique_nodes(halving.passed)
    suspects = [node for node in _unique_nodes(halving.failed_pairs) if node not in good]
    partners = good or _find_passing_pair(suspects, test)
    if not partners:
        return SearchResult(unsure=tuple(suspects))
    trials = _try_suspects([suspect for suspect in suspects if suspect not in partners], partners, test)
    bad = [suspect for suspect in suspects if trials.is_bad(suspect)]
    unsure = [suspect for suspect in suspects if suspect not in partners and trials.is_open(suspect)]
    good = list(dict.fromkeys([*good, *(suspect for suspect in suspects if suspect not in bad + unsure)]))
    return SearchResult(
        bad=tuple(bad),
        apart=tuple(_find_bad_links(halving, trials, good, test)),
        good=tuple(good),
        unsure=tuple(unsure),
    )


def _fails(group: Group, test: Test) -> bool:
    """Return whether a group fails in two tests in a row. A test without a result counts as failed."""
    return not test([group])[0] and not test([group])[0]


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


def _try_suspects(suspects: Sequence[str], partners: Sequence[str], test: Test) -> _Trials:
    """Test every suspect with good partners, a different one in every trial, until the suspect passes or is bad."""
    trials = _Trials(partners=len(partners))
    for trial in range(MAX_TRIALS):
        shift = trial % len(partners)
        rotated = [*partners[shift:], *partners[:shift]]
        for start in range(0, len(suspects), len(rotated)):
            pairs = [pair for pair in zip(suspects[start:], rotated, strict=False) if trials.is_open(pair[0])]
            for (suspect, partner), passed in zip(pairs, test(pairs) if pairs else (), strict=True):
                if passed:
                    trials.passed.add(suspect)
                elif passed is not None:
                    trials.failed.setdefault(suspect, []).append(partner)
    return trials


def _find_bad_links(
    halving: _Halving, trials: _Trials, good: Sequence[str], test: Test
) -> Iterable[tuple[Group, Group]]:
    """Yield the sides that fail together again although both are good."""
    pairs = [pair for pair in halving.failed_pairs if pair[0] != pair[1]]
    for suspect in sorted(trials.passed):
        pairs += [(suspect, partner) for partner in trials.failed.get(suspect, ())]
    for left, right in pairs:
        if left in good and right in good and _fails((left, right), test):
            yield (left,), (right,)
    for left_half, right_half in halving.split:
        good_left = tuple(node for node in left_half if node in good)
        good_right = tuple(node for node in right_half if node in good)
        if good_left and good_right and _fails(good_left + good_right, test):
            narrowed = _narrow_side(good_left, good_right, test)
            yield narrowed, _narrow_side(good_right, narrowed, test)


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


def find_intermittent(nodes: Sequence[str], test: Test, rounds: int) -> dict[str, int]:
    """Return the nodes that fail in some of `rounds` rounds of pairs, with the number of their failed tests.

    A failed pair counts for the node that explains the most failures. A node is found once `PARTNERS` of its tests,
    with two partners or more, have failed. Among four nodes or more, 20 rounds found a node that fails half the time in
    each of 1000 simulations, and one that fails a quarter of the time in about 90 %.
    """
    failed: list[Group] = []
    schedule = tournament(nodes) if len(nodes) > 2 else []
    for pairs in islice(cycle(schedule), rounds if schedule else 0):
        failed += [pair for pair, passed in zip(pairs, test(pairs), strict=True) if passed is False]
    found: dict[str, int] = {}
    while failed:
        node, count = Counter(chain.from_iterable(failed)).most_common(1)[0]
        own = [pair for pair in failed if node in pair]
        if count < PARTNERS or len(set(own)) < 2:
            break
        found[node] = count
        failed = [pair for pair in failed if node not in pair]
    return found


def _narrow_side(side: Group, other: Group, test: Test) -> Group:
    """Return the smallest part of `side` that halving finds and that still fails together with `other`."""
    while len(side) > 1:
        failing_half = next((half for half in _cut(side) if _fails(half + other, test)), None)
        if failing_half is None:
            break  # only the two halves together fail
        side = failing_half
    return side


def _cut(group: Group) -> tuple[Group, Group]:
    middle = len(group) // 2
    return group[:middle], group[middle:]


def _unique_nodes(groups: Iterable[Group]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(groups)))
