"""`opsctl nccl` and `opsctl stacks` name the collective and the ranks of real dumps of torch's flight recorder."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli.nccl import nccl
from opsctl.cli.stacks import stacks
from opsctl.diagnosis.flight_recorder import describe_dumps, read_dumps

CORPUS = Path(__file__).parents[2] / "corpus" / "flight"
MISSING = "group 0 default_pg: rank 3 never came to gloo:all_reduce [[8]] (number 3)"
STACK = 'Thread 0x00007f (most recent call first):\n  File "/job/train.py", line 7 in <module>\n'


@pytest.fixture
def attempt(tmp_path):
    """The directory of an attempt: dumps of four ranks, and the stack of one."""
    shutil.copytree(CORPUS, tmp_path, dirs_exist_ok=True)
    (tmp_path / "node7-3.txt").write_text(STACK)
    return tmp_path


def test_nccl_reads_the_dumps_of_a_directory(attempt):
    result = CliRunner().invoke(nccl, [str(attempt)])
    assert (result.exit_code, result.output.splitlines()) == (0, [MISSING])


def test_nccl_reads_dumps_by_file(attempt):
    names = [str(attempt / f"flight-{rank}") for rank in range(3)]
    lines = CliRunner().invoke(nccl, names).output.splitlines()
    assert lines[-1] == "group 0 default_pg: no dump of rank 3"


def test_nccl_json_has_the_collective(attempt):
    fields = json.loads(CliRunner().invoke(nccl, [str(attempt), "--json"]).output)
    (problem,) = fields["collectives"]
    assert (fields["flight_dumps"], problem["missing"], problem["number"]) == (4, [3], 3)
    assert problem["calls"] == {"gloo:all_reduce [[8]]": [0, 1, 2]}


def test_stacks_names_the_rank_and_its_node(attempt):
    lines = CliRunner().invoke(stacks, ["--from", str(attempt)], obj=None).output.splitlines()
    assert lines[-1] == MISSING.replace("rank 3", "rank 3 (node7)")
    assert "train.py:7" in lines[0]


def test_stacks_json_has_the_collective(attempt):
    fields = json.loads(CliRunner().invoke(stacks, ["--from", str(attempt), "--json"]).output)
    assert (fields["groups"][0]["place"], fields["collectives"][0]["missing"]) == ("<module> at train.py:7", [3])


def test_stacks_reads_dumps_without_any_stack(attempt):
    (attempt / "node7-3.txt").unlink()
    assert CliRunner().invoke(stacks, ["--from", str(attempt)]).output.splitlines() == [MISSING]


def test_dumps_under_torch_names_are_read(tmp_path):
    for rank in range(4):
        shutil.copy(CORPUS / f"flight-{rank}", tmp_path / f"nccl_trace_rank_{rank}")
    assert describe_dumps(read_dumps(tmp_path)) == [MISSING]


def test_dumps_without_a_problem_say_so(tmp_path):
    shutil.copy(CORPUS / "flight-3", tmp_path / "flight-3")
    (line,) = describe_dumps(read_dumps(tmp_path))
    assert line == "flight recorder: no collective waits for a rank in the dumps of rank 3"
