"""The search for the nodes that make a collective test fail."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.nodes.collective_test.node_search import SearchResult, find_intermittent, search

NODES = tuple(f"n{number:03}" for number in range(64))


class Cluster:
    """Nodes, of which some fail with every node, and some pairs fail together."""

    def __init__(self, bad=(), apart=()):
        self.bad, self.apart, self.rounds = set(bad), [set(pair) for pair in apart], 0

    def test(self, groups):
        assert len({node for group in groups for node in group}) == sum(map(len, groups)), "a node is in two groups"
        self.rounds += 1
        return [not self.bad & set(group) and not any(pair <= set(group) for pair in self.apart) for group in groups]


def test_passing_nodes_need_one_round():
    cluster = Cluster()
    assert search(NODES, cluster.test) == SearchResult(good=NODES)
    assert cluster.rounds == 1


def test_bad_node_of_64_is_found_in_ten_rounds():
    cluster = Cluster(bad=["n037"])
    result = search(NODES, cluster.test)
    assert (result.bad, result.apart, result.unsure) == (("n037",), (), ())
    assert len(result.good) == 63
    assert cluster.rounds <= 4 + math.log2(64)


def test_two_failing_nodes_are_unsure():
    assert search(("a", "b"), Cluster(bad=["a"]).test) == SearchResult(unsure=("a", "b"))


def test_node_without_partner_is_listed_once():
    result = search(("a", "b", "c"), Cluster(bad=["c"]).test)
    assert sorted(result.good) == ["a", "b"]


def test_pair_that_fails_only_together_is_not_bad():
    result = search(NODES, Cluster(apart=[("n003", "n060")]).test)
    assert (result.bad, result.apart) == ((), ((("n003",), ("n060",)),))
    assert len(result.good) == 64


def test_failing_neighbours_are_reported_as_a_pair():
    result = search(NODES, Cluster(apart=[("n002", "n003")]).test)
    assert (result.bad, result.apart) == ((), ((("n002",), ("n003",)),))


@given(count=st.integers(3, 40), data=st.data())
def test_exactly_the_bad_nodes_are_found(count, data):
    nodes = NODES[:count]
    bad = data.draw(st.sets(st.sampled_from(nodes), max_size=count - 2))
    result = search(nodes, Cluster(bad=bad).test)
    assert {*result.bad} == bad
    assert {*result.good} == {*nodes} - bad
    assert (result.apart, result.unsure) == ((), ())


@given(count=st.integers(4, 40), data=st.data())
def test_broken_link_blames_no_node(count, data):
    nodes = NODES[:count]
    pair = data.draw(st.lists(st.sampled_from(nodes), min_size=2, max_size=2, unique=True))
    result = search(nodes, Cluster(apart=[pair]).test)
    assert not result.bad
    assert not result.unsure
    assert any({*left, *right} == set(pair) for left, right in result.apart)


@pytest.mark.parametrize(("share", "least"), [(0.5, 0.99), (0.25, 0.85), (0.0, 0.0)])
def test_rounds_find_a_node_that_fails_sometimes(share: float, least: float) -> None:
    nodes = [f"node{number}" for number in range(8)]
    found = []
    for seed in range(300):
        rng = Random(seed)

        def test(pairs: list[tuple[str, ...]], rng: Random = rng) -> list[bool]:
            return ["node3" not in pair or rng.random() >= share for pair in pairs]

        found.append(find_intermittent(nodes, test, 20))
    assert all(set(result) <= {"node3"} for result in found)
    assert sum(bool(result) for result in found) >= least * len(found)
