"""Ranks that do not answer, with the state of their processes."""

from __future__ import annotations

from pathlib import Path

from opsctl.diagnosis.py_spy import FILE_NAME
from opsctl.diagnosis.stack_dumps import CANNOT_TRAIN, GONE, Stack, group_stacks, parse
from opsctl.watchdogs.hang_stacks import RankProcesses, list_answered, render_silent

HOMES = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


def describe(answered: set[int], *states: tuple[int, str], reached: tuple[str, ...] = ("n1", "n2")) -> list[str]:
    rows = [
        Stack(node=HOMES[rank], rank=rank, pid=100 + rank, state=state, kernel_function="nfs_wait")
        for rank, state in states
    ]
    return render_silent(answered, RankProcesses(ranks=4, homes=HOMES, states=rows, reached=reached))


def test_all_answers_name_nobody() -> None:
    assert describe({0, 1, 2, 3}, (0, "S"), (1, "S"), (2, "R"), (3, "S")) == []


def test_silent_rank_is_named_with_its_state() -> None:
    assert describe({0, 1, 3}, (0, "S"), (1, "S"), (2, "T"), (3, "S")) == [
        "rank 2 on n2 does not answer: stopped by a signal (T)"
    ]


def test_ranks_are_grouped_by_node_with_reasons_first() -> None:
    assert describe({0}, (0, "S"), (1, "S"), (2, "D")) == [
        "rank 2 on n2 does not answer: hangs in the kernel (D) in nfs_wait",
        "rank 3 on n2 does not answer: the process is gone",
        "rank 1 on n1 does not answer",
    ]


def test_foreign_trainer_names_only_ranks_that_cannot_run() -> None:
    assert describe(set(), (0, "S"), (1, "S"), (2, "T")) == [
        "rank 2 on n2 does not answer: stopped by a signal (T)",
        "rank 3 on n2 does not answer: the process is gone",
    ]


def test_unreached_node_and_unnamed_ranks_are_not_called_gone() -> None:
    assert describe(set(), (0, "S"), (1, "S"), reached=("n1",)) == []
    assert describe(set()) == []


def test_states_are_read_beside_the_stacks(tmp_path: Path) -> None:
    text = "== node n1 rank 3 pid 77 state D in nfs_wait\nThread 77 (idle)\n== node n2 rank 4 pid 78 state S in 0\n"
    assert [(row.rank, row.state, row.kernel_function) for row in parse(text.encode())] == [
        (3, "D", "nfs_wait"),
        (4, "S", ""),
    ]
    (tmp_path / "n1-3.txt").write_text("stack")
    (tmp_path / FILE_NAME).write_text(text)
    assert list_answered(tmp_path) == {3}


def test_alert_and_stacks_describe_a_rank_in_the_same_words() -> None:
    for state in sorted(CANNOT_TRAIN):
        [line] = describe({0, 1, 3}, (2, state), reached=())
        [group] = group_stacks([Stack(node="n2", rank=2, state=state)])
        assert line.partition(": ")[2].removesuffix(" in nfs_wait") == str(group).rpartition(": ")[2]
    [line] = describe({0, 1, 3}, (0, "S"), (1, "S"), (3, "S"))
    [group] = group_stacks([Stack(rank=2, state=GONE)])
    assert line.partition(": ")[2] == str(group).rpartition(": ")[2]
