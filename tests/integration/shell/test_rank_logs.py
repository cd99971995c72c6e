"""The log of a node, into which all its ranks write, and the start of a rank from one file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.base.tables import PACKAGE
from opsctl.guard.rank import name_ranks, rank_variables
from opsctl.launch.rank_wrapper import render_rank_wrapper, start_with
from tests.integration.shell.test_rank import SLURM, start

RANKS = range(4, 8)
LINES = 5000
SPEAK = f"""
import os, sys
rank = os.environ["RANK"]
for number in range({LINES}):
    print(number, rank * (number % 300))
    if number % 7 == 0:
        sys.stdout.flush()
"""
LINE_OF_ALL = {rank: [f"[node002:{rank}]: {n} {str(rank) * (n % 300)}" for n in range(LINES)] for rank in RANKS}


def test_ranks_of_a_node_write_whole_lines_in_their_order(tmp_path: Path) -> None:
    ranks = [
        start(
            tmp_path,
            sys.executable,
            "-c",
            SPEAK,
            option="--logs",
            env={"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank - 4)},
        )
        for rank in RANKS
    ]
    shown = [process.communicate(timeout=250)[0].decode().splitlines() for process in ranks]
    assert [path.name for path in tmp_path.glob("*.log")] == ["node002-4..7.log"]
    lines = (tmp_path / "node002-4..7.log").read_text().splitlines()
    assert len(lines) == len(RANKS) * LINES
    for rank, own in zip(RANKS, shown, strict=True):
        assert own == LINE_OF_ALL[rank]
        assert [line for line in lines if line.startswith(f"[node002:{rank}]: ")] == own


def test_unfinished_last_words_are_in_the_log_of_the_node(tmp_path: Path) -> None:
    start(tmp_path, "sh", "-c", "printf 'one\\r\\ntwo'; exit 3", option="--logs").communicate(timeout=250)
    assert (tmp_path / "node002-4..7.log").read_text() == "[node002:5]: one\n[node002:5]: two\n"


@pytest.mark.parametrize(
    ("change", "ranks"),
    [
        ({}, "4..7"),
        ({"SLURM_STEP_TASKS_PER_NODE": "4,2", "SLURM_NTASKS": "6"}, "4..5"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x8)", "SLURM_NODEID": "5", "SLURM_LOCALID": "0"}, ""),
        ({"SLURM_PROCID": "3"}, ""),  # --distribution=cyclic: the node has ranks 1, 3, 5 and 7
        ({"TRAIN_HOST_FILE": "/hosts", "SLURM_NODEID": "0"}, "4..7"),
    ],
)
def test_log_is_named_by_the_ranks_of_the_node(change: dict[str, str], ranks: str) -> None:
    env = {**SLURM, **change}
    assert name_ranks(env, rank_variables(env)) == ranks


HOOK = "import sys; sys.addaudithook(lambda event, args: event == 'open' and print(args[0], file=sys.stderr)); "


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("python", ["/usr/bin/python3", sys.executable])
def test_rank_starts_from_one_file(tmp_path: Path, python: str, *, has_file: bool) -> None:
    """Without the file, as in a container without a guard, the rank wrapper starts from the package."""
    wrapper = tmp_path / "rank_wrapper.py"
    if has_file:
        wrapper.write_text(render_rank_wrapper())
    words = [*start_with(python, wrapper, tmp_path / "none" if has_file else PACKAGE)]
    words[4] = HOOK + words[4]
    argv = [*words, "--logs", str(tmp_path), "--", "sh", "-c", "echo hi; exit 7"]
    done = subprocess.run(argv, env={**os.environ, **SLURM}, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (7, "[node002:5]: hi")
    opened = [line for line in done.stderr.splitlines() if line.startswith(str(tmp_path))]
    assert opened == [str(wrapper), f"{tmp_path}/node002-4..7.log", f"{tmp_path}/first-exit"]
    assert has_file is ("/opsctl/" not in done.stderr)
