"""Stacks of many ranks are grouped: a hang of the chronicles, and formats of py-spy and faulthandler."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from opsctl.cli.stacks import stacks as stacks_command
from opsctl.diagnosis.line_origin import LineOrigin
from opsctl.diagnosis.py_spy import dump_stacks
from opsctl.diagnosis.request_stacks import collect_answers
from opsctl.diagnosis.stack_dumps import NO_STACK, PTRACE, REFUSED, parse, render_stacks
from opsctl.host.system import SystemRunner
from opsctl.nodes.remote.fanout import Fanout, Local
from tests.support.cases import read_cases
from tests.unit.diagnosis.conftest import read_corpus

SIX, TWO = read_corpus("tr11-hang-six.txt"), read_corpus("tr11-hang-two.txt")


def render_pyspy(node: str, rank: int, text: str) -> str:
    """Return the output of `opsctl stacks --py-spy` for one rank."""
    pid = 835990 + rank % 8
    head = f"== node {node} rank {rank} pid {pid}\nProcess {pid}: python pretrain_gpt.py\nPython v3.8.8 (python3.8)\n\n"
    return head + text.replace("835990", str(pid)).replace("835995", str(pid))


def render_hang() -> str:
    """Return the stacks of 48 nodes; on one node local ranks 4 and 5 never finished their step."""
    return "".join(
        render_pyspy(
            f"r10i{node // 8}n{node % 8}", node * 8 + local, TWO if (node, local) in {(13, 4), (13, 5)} else SIX
        )
        for node in range(48)
        for local in range(8)
    )


def test_hung_ranks_come_first() -> None:
    assert render_stacks(parse(render_hang().encode())) == [
        "2 ranks (node r10i1n5: 108-109) in broadcast at engine.py:540",
        "382 ranks (node r10i0n0: 0-7; node r10i0n1: 8-15; node r10i0n2: 16-23; node r10i0n3: 24-31; 44 more nodes)"
        " in train at training.py:915",
    ]


def test_dumps_without_ranks_are_grouped_by_process(tmp_path: Path) -> None:
    for node in (0, 1):
        text = "".join(SIX.replace("835990", str(835990 + n)) for n in range(6))
        (tmp_path / f"trace-1-r10i0n{node}.out").write_text(
            text + TWO.replace("835995", "9") + TWO.replace("835995", "8")
        )
    result = CliRunner().invoke(stacks_command, ["--from", str(tmp_path)])
    assert result.output.splitlines() == [
        "4 processes (node r10i0n0: pid 9, 8; node r10i0n1: pid 9, 8) in broadcast at engine.py:540",
        "12 processes (node r10i0n0: pid 835990, 835991, 835992, 835993, 835994, 835995; "
        "node r10i0n1: pid 835990, 835991, 835992, 835993, 835994, 835995) in train at training.py:915",
    ]


def test_faulthandler_output_in_a_log_with_prefixes() -> None:
    """The lines of two ranks alternate."""
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


def test_native_stack_names_the_python_function() -> None:
    text = (
        'Thread 1 (active): "MainThread"\n    ncclGroupEnd (libnccl.so.2)\n'
        "    cuStreamSynchronize (libcuda.so.1:0)\n    all_reduce (torch/distributed/distributed_c10d.py:1316)\n"
        "    train (megatron/training.py:915)\n"
    )
    assert render_stacks(parse(text.encode(), LineOrigin(node="n1", rank=3))) == [
        "1 rank (node n1: 3) in all_reduce at training.py:915"
    ]


def test_later_dump_of_a_rank_counts() -> None:
    text = 'at 1.0\nThread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n'
    text += 'at 2.0\nThread 0x1 (most recent call first):\n  File "b.py", line 2 in g\n'
    assert render_stacks(parse(text.encode(), LineOrigin(node="n1", rank=3)), ranks=2) == [
        "1 of 2 ranks did not answer",
        "1 rank (node n1: 3) in g at b.py:2",
    ]


def test_py_spy_outweighs_a_dump_of_the_rank(tmp_path: Path) -> None:
    (tmp_path / "n1-0.txt").write_text("")
    (tmp_path / "n1-1.txt").write_text('at 1.0\nThread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n')
    (tmp_path / "py-spy.txt").write_text(render_pyspy("n1", 1, SIX))
    assert render_stacks(collect_answers(tmp_path)) == [
        f"1 rank (node n1: 0) {NO_STACK}",
        "1 rank (node n1: 1) in train at training.py:915",
    ]


FORBIDDEN = """== node n1 rank {rank} pid 7
Error: Failed to get process executable name. Check that the process is running.

Caused by:
Error 0: Permission denied (os error 13)
"""
YAMA = "== node n1 rank {rank} pid 8\nPermission Denied: Try running again with elevated permissions by going 'sudo'\n"


def test_refused_ranks_come_last_with_a_hint() -> None:
    text = FORBIDDEN.format(rank=0) + YAMA.format(rank=1) + "".join(render_pyspy("n2", rank, SIX) for rank in (2, 3, 4))
    assert render_stacks(parse(text.encode())) == [
        "3 ranks (node n2: 2-4) in train at training.py:915",
        f"2 ranks (node n1: 0-1) {REFUSED}",
        PTRACE,
    ]


def test_permission_error_in_a_rank_log_is_no_refusal() -> None:
    text = "at 1.0\nPermission denied\nThread 0x1 (most recent call first):\n"
    assert render_stacks(parse(text.encode(), LineOrigin(node="n1", rank=3))) == [f"1 rank (node n1: 3) {NO_STACK}"]


@pytest.mark.parametrize(*read_cases(__file__, "node_without_stacks_has_a_reason"))
def test_node_without_stacks_has_a_reason(program: str, why: str) -> None:
    here = Fanout(shells=[Local(runner=SystemRunner(), names=["n1"])])
    dump = dump_stacks(program, "none.such", ["n1", "n2"], here)
    assert (dump.text, set(dump.problems)) == ("", {why, "n2 could not be reached: no route leads to the node"})


@given(st.binary(max_size=300))
def test_noise_raises_nothing(data: bytes) -> None:
    render_stacks(parse(b"== node n rank 1 pid 2\nThread 1:\n" + data))


@pytest.mark.parametrize("args", [[], ["gpt", "--from", "."]])
def test_train_and_files_exclude_each_other(args: list[str]) -> None:
    assert "not both" in CliRunner().invoke(stacks_command, args).output
