"""The odd ranks of a hang."""

from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.hang_cause import judge_hang
from opsctl.diagnosis.stack_dumps import Frame, Stack, parse
from tests.unit.diagnosis.test_stack_dumps import render_hang

HOMES = {rank: f"n{rank // 4}" for rank in range(16)}


def stacks_at(place: str, *ranks: int, refused: bool = False) -> list[Stack]:
    frames = () if refused else (Frame(place, f"{place}.py", 1),)
    return [Stack(node=HOMES[rank], rank=rank, frames=frames, refused=refused) for rank in ranks]


def test_odd_ranks_of_the_chronicles_name_their_node() -> None:
    diagnosis = judge_hang(parse(render_hang().encode()), ranks=384, homes={})
    assert (diagnosis.kind.value, diagnosis.cause, diagnosis.node, diagnosis.rank) == (
        "hang",
        "hang",
        "r10i1n5",
        None,
    )
    assert diagnosis.says == "the attempt hung, odd: 2 ranks (node r10i1n5: 108-109) in broadcast at engine.py:540"
    assert diagnosis.evidence[1].startswith("382 ranks ")
    assert diagnosis.suspects == ()


def test_silent_rank_is_odd() -> None:
    diagnosis = judge_hang(stacks_at("all_reduce", *range(5), *range(6, 16)), ranks=16, homes=HOMES)
    assert (diagnosis.node, diagnosis.rank) == ("n1", 5)
    assert diagnosis.says == "the attempt hung, odd: 1 rank (node n1: 5) not answering"


def test_odd_ranks_on_several_nodes_name_no_node() -> None:
    diagnosis = judge_hang(stacks_at("all_reduce", *range(14)) + stacks_at("read", 3, 14), ranks=16, homes=HOMES)
    assert (diagnosis.node, "2 ranks" in diagnosis.says) == ("", True)


def test_no_rank_is_odd_without_a_majority() -> None:
    """Pipeline stages wait at different places."""
    halves = stacks_at("send", *range(8)) + stacks_at("recv", *range(8, 16))
    few = stacks_at("all_reduce", *range(8)) + stacks_at("read", 9)
    for stacks in (halves, few, []):
        diagnosis = judge_hang(stacks, ranks=16, homes=HOMES)
        assert (diagnosis.says, diagnosis.node, diagnosis.rank) == ("the attempt hung", "", None)


def test_refused_rank_is_not_odd() -> None:
    stacks = stacks_at("all_reduce", *range(15)) + stacks_at("", 15, refused=True)
    assert judge_hang(stacks, ranks=16, homes=HOMES).says == "the attempt hung"


def test_more_ranks_than_configured_are_counted() -> None:
    halves = stacks_at("send", *range(8)) + stacks_at("recv", *range(8, 16))
    assert judge_hang(halves, ranks=2, homes=HOMES).says == "the attempt hung"
    diagnosis = judge_hang(stacks_at("send", *range(15)) + stacks_at("recv", 15), ranks=2, homes=HOMES)
    assert (diagnosis.node, diagnosis.rank) == ("n3", 15)


def test_process_without_a_rank_makes_no_rank_silent() -> None:
    stacks = [Stack(node="n1", pid=pid, frames=(Frame("all_reduce", "a.py", 1),)) for pid in range(3)]
    assert judge_hang(stacks, ranks=4, homes=HOMES).says == "the attempt hung"


def test_long_list_of_odd_groups_is_cut() -> None:
    stacks = stacks_at("all_reduce", *range(9)) + [
        stack for rank in range(9, 16) for stack in stacks_at(f"f{rank}", rank)
    ]
    diagnosis = judge_hang(stacks, ranks=16, homes=HOMES)
    assert diagnosis.says.endswith(" in f12 at f12.py:1; and 4 more groups")


@given(st.dictionaries(st.integers(0, 15), st.sampled_from(["a", "b", "c", ""]), max_size=16))
def test_half_of_the_ranks_is_never_odd(places: dict[int, str]) -> None:
    stacks = [stack for rank, place in places.items() for stack in stacks_at(place, rank, refused=not place)]
    diagnosis = judge_hang(stacks, ranks=16, homes=HOMES)
    if diagnosis.node or diagnosis.rank is not None:
        largest = max([*places.values()].count(place) for place in "abc")
        assert largest > 8
