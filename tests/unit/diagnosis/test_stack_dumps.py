"""Stacks of many ranks, grouped: the hang of the prequel, and forms of py-spy and faulthandler."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from opsctl.cli.stacks import stacks as verb
from opsctl.diagnosis.py_spy import dump_stacks
from opsctl.diagnosis.request_stacks import collect_answers
from opsctl.diagnosis.speakers import Speaker
from opsctl.diagnosis.stack_dumps import NO_STACK, PTRACE, REFUSED, parse, render_stacks
from opsctl.host.system import SystemRunner
from opsctl.nodes.remote.fanout import Fanout
from opsctl.nodes.remote.local import Local
from tests.unit.diagnosis.conftest import real

SIX, TWO = real("tr11-hang-six.txt"), real("tr11-hang-two.txt")


def pyspy(node: str, rank: int, text: str) -> str:
    """As `opsctl stacks --py-spy` has it printed."""
    pid = 835990 + rank % 8
    head = f"== node {node} rank {rank} pid {pid}\nProcess {pid}: python pretrain_gpt.py\nPython v3.8.8 (python3.8)\n\n"
    return head + text.replace("835990", str(pid)).replace("835995", str(pid))


def hang() -> str:
    """48 nodes; on one of them, ranks 4 and 5 never finished their step."""
    return "".join(
        pyspy(f"r10i{node // 8}n{node % 8}", node * 8 + local, TWO if (node, local) in {(13, 4), (13, 5)} else SIX)
        for node in range(48)
        for local in range(8)
    )


def test_the_two_ranks_that_never_finished_their_step_come_first() -> None:
    assert render_stacks(parse(hang().encode())) == [
        "2 ranks (node r10i1n5: 108-109) in broadcast at engine.py:540",
        "382 ranks (node r10i0n0: 0-7; node r10i0n1: 8-15; node r10i0n2: 16-23; node r10i0n3: 24-31; 44 more nodes)"
        " in train at training.py:915",
    ]


def test_raw_dumps_of_a_node_are_told_by_process(tmp_path: Path) -> None:
    for node in (0, 1):
        text = "".join(SIX.replace("835990", str(835990 + n)) for n in range(6))
        (tmp_path / f"trace-1-r10i0n{node}.out").write_text(
            text + TWO.replace("835995", "9") + TWO.replace("835995", "8")
        )
    result = CliRunner().invoke(verb, ["--from", str(tmp_path)])
    assert result.output.splitlines() == [
        "4 processes (node r10i0n0: pid 9, 8; node r10i0n1: pid 9, 8) in broadcast at engine.py:540",
        "12 processes (node r10i0n0: pid 835990, 835991, 835992, 835993, 835994, 835995; "
        "node r10i0n1: pid 835990, 835991, 835992, 835993, 835994, 835995) in train at training.py:915",
    ]


def test_faulthandler_in_a_log_with_prefixes() -> None:
    """Two ranks dump at once, line by line."""
    dump = (
        "[n1:{rank}]: Thread 0x00007f42a45856c0 (most recent call first):\n"
        '[n1:{rank}]:   File "/usr/lib/python3.11/threading.py", line 982 in run\n'
        "[n1:{rank}]: \n"
        "[n1:{rank}]: Current thread 0x00007f42a4fdfb80 (most recent call first):\n"
        '[n1:{rank}]:   File "/x/site-packages/torch/distributed/c10d_logger.py", line 81 in wrapper\n'
        '[n1:{rank}]:   File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce\n'
        '[n1:{rank}]:   File "/w/megatron/training.py", line 915 in train\n'
    )
    first, second = dump.format(rank=0).splitlines(), dump.format(rank=1).splitlines()
    mixed = "\n".join(line for pair in zip(first, second, strict=True) for line in pair)
    assert render_stacks(parse(mixed.encode())) == ["2 ranks (node n1: 0-1) in all_reduce at training.py:915"]


def test_a_native_stack_names_what_the_program_called() -> None:
    text = (
        'Thread 1 (active): "MainThread"\n    ncclGroupEnd (libnccl.so.2)\n'
        "    cuStreamSynchronize (libcuda.so.1:0)\n    all_reduce (torch/distributed/distributed_c10d.py:1316)\n"
        "    train (megatron/training.py:915)\n"
    )
    assert render_stacks(parse(text.encode(), Speaker(node="n1", rank=3))) == [
        "1 rank (node n1: 3) in all_reduce at training.py:915"
    ]


def test_of_two_dumps_of_a_rank_the_later_one_counts() -> None:
    text = 'at 1.0\nThread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n'
    text += 'at 2.0\nThread 0x1 (most recent call first):\n  File "b.py", line 2 in g\n'
    assert render_stacks(parse(text.encode(), Speaker(node="n1", rank=3)), ranks=2) == [
        "1 rank (node n1: 3) in g at b.py:2",
        "1 of 2 ranks did not answer",
    ]


def test_py_spy_counts_for_more_than_what_a_rank_says_itself(tmp_path: Path) -> None:
    (tmp_path / "n1-0.txt").write_text("")
    (tmp_path / "n1-1.txt").write_text('at 1.0\nThread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n')
    (tmp_path / "py-spy.txt").write_text(pyspy("n1", 1, SIX))
    assert render_stacks(collect_answers(tmp_path)) == [
        "1 rank (node n1: 1) in train at training.py:915",
        f"1 rank (node n1: 0) {NO_STACK}",
    ]


FORBIDDEN = """== node n1 rank {rank} pid 7
Error: Failed to get process executable name. Check that the process is running.

Caused by:
Error 0: Permission denied (os error 13)
"""
YAMA = "== node n1 rank {rank} pid 8\nPermission Denied: Try running again with elevated permissions by going 'sudo'\n"


def test_ranks_that_py_spy_may_not_look_at_are_unknown_come_last_and_say_what_would_help() -> None:
    text = FORBIDDEN.format(rank=0) + YAMA.format(rank=1) + "".join(pyspy("n2", rank, SIX) for rank in (2, 3, 4))
    assert render_stacks(parse(text.encode())) == [
        "3 ranks (node n2: 2-4) in train at training.py:915",
        f"2 ranks (node n1: 0-1) {REFUSED}",
        PTRACE,
    ]


def test_a_rank_that_speaks_of_permissions_in_its_own_log_was_not_refused() -> None:
    text = "at 1.0\nPermission denied\nThread 0x1 (most recent call first):\n"
    assert render_stacks(parse(text.encode(), Speaker(node="n1", rank=3))) == [f"1 rank (node n1: 3) {NO_STACK}"]


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("sh", "n1: no rank that this user may inspect"),
        ("no-py-spy", "n1: no-py-spy is not installed; name an installed program with --py-spy"),
    ],
)
def test_a_node_on_which_nothing_was_seen_says_why(program: str, why: str) -> None:
    here = Fanout(shells=[Local(runner=SystemRunner(), names=["n1"])])
    looked = dump_stacks(program, "none.such", ["n1", "n2"], here)
    assert (looked.text, set(looked.problems)) == ("", {why, "n2 could not be reached: no route leads to the node"})


@given(st.binary(max_size=300))
def test_whatever_is_read_nothing_breaks(data: bytes) -> None:
    render_stacks(parse(b"== node n rank 1 pid 2\nThread 1:\n" + data))


@pytest.mark.parametrize("args", [[], ["gpt", "--from", "."]])
def test_a_train_or_files(args: list[str]) -> None:
    assert "not both" in CliRunner().invoke(verb, args).output
