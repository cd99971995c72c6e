"""`opsctl why` and `opsctl stacks` on ranks of a real Slurm. `pytest tests/sandbox/test_why.py`"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from trains import trains_on, until

ROOT = Path(__file__).parents[2]
CRASH = """
import os, sys, time
rank = os.environ["RANK"]
print(" iteration       10/     100 | elapsed time per iteration (s): 0.5 | lm loss: 2.5E+00 |", flush=True)
time.sleep(1)
if rank == "1":
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
time.sleep(0.5)
raise RuntimeError("NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error")
"""
HANG = """
import os, sys, time, types
sys.path.insert(0, sys.argv[1])
from trainer.stacks import answer_requests
rank = os.environ["RANK"]
answer_requests(os.environ, types.SimpleNamespace(node=os.environ["TRAIN_NODE"], rank=rank))
open(os.environ["TRAIN_RUN_DIR"] + "/ready-" + rank, "w").close()
def all_reduce(): time.sleep(600)
def broadcast(): time.sleep(600)
(broadcast if rank == "1" else all_reduce)()
"""


@pytest.fixture
def trains(slurm):
    with trains_on(slurm) as made:
        yield made


def test_the_rank_that_failed_first_is_found_on_its_node(trains, tmp_path):
    (tmp_path / "crash.py").write_text(CRASH)
    command = (sys.executable, str(tmp_path / "crash.py"))
    trains.opsctl("launch", trains.toml(command=command, nodes=2, tasks=1, extra=()))
    until(lambda: not trains.rows(), seconds=60)
    found = json.loads(trains.opsctl("why", "t", "--json"))
    [life] = trains.run().lives()
    [log] = trains.run().life_logs(life.name).glob("*-1.log")
    assert (found["kind"], found["cause"], found["rank"]) == ("gpu", "gpu-ecc", 1)
    assert f"{found['node']}-1.log" == log.name
    assert found["life"] == life.name


def test_every_rank_that_runs_tells_where_it_is(trains, tmp_path):
    (tmp_path / "hang.py").write_text(HANG)
    command = (sys.executable, str(tmp_path / "hang.py"), str(ROOT))
    trains.opsctl("launch", trains.toml(command=command, nodes=2, tasks=1, extra=(), processes_per_node=2))
    until(lambda: len(list(trains.run().path.glob("ready-*"))) == 4, seconds=60)
    for more in ((), ("--signal",)):
        lines = trains.opsctl("stacks", "t", "--seconds", "30", *more).splitlines()
        assert [line.partition(" at ")[0].partition(") in ")[2] for line in lines[:2]] == ["broadcast", "all_reduce"]
        assert lines[0].startswith("1 rank (node ")
        assert lines[1].startswith("3 ranks (node ")


def test_where_nothing_runs_it_says_so(trains):
    trains.opsctl("launch", trains.toml())
    assert trains.refusal("stacks", "t").message == "t: nothing runs"
    assert trains.refusal("why", "t").message == "t: no life has ended"
