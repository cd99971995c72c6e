"""`opsctl why` and `opsctl stacks` on ranks of a real Slurm."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from opsctl.diagnosis.stack_dumps import PTRACE, REFUSED
from opsctl.slurm.steps import NOT_STARTED
from tests.support.sshds import sshd
from tests.support.trains import as_user, until

ROOT = Path(__file__).parents[3]
CRASH = """
import os, sys, time
rank = os.environ["RANK"]
print(" iteration       10/     100 | elapsed time per iteration (s): 0.5 | lm loss: 2.5E+00 |", flush=True)
fails = os.environ["TRAIN_RUN_DIR"] + "/rank-1-fails"
if rank == "1":
    time.sleep(1)
    open(fails, "w").close()
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
while not os.path.exists(fails):
    time.sleep(0.02)
time.sleep(0.5)
raise RuntimeError("NCCL error in: NCCLUtils.hpp:268, remote process exited or there was a network error")
"""
HANG = """
import os, sys, time, types
sys.path.insert(0, sys.argv[1])
from opsctl.trainer.rank_process import answer_stack_requests
rank = os.environ["RANK"]
answer_stack_requests(os.environ, types.SimpleNamespace(node=os.environ["TRAIN_NODE"], rank=rank))
open(os.environ["TRAIN_RUN_DIR"] + "/ready-" + rank, "w").close()
def all_reduce(): time.sleep(600)
def broadcast(): time.sleep(600)
(broadcast if rank == "1" else all_reduce)()
"""


def test_first_failed_rank_is_found_on_its_node(trains, tmp_path):
    (tmp_path / "crash.py").write_text(CRASH)
    command = (sys.executable, str(tmp_path / "crash.py"))
    trains.opsctl("launch", trains.toml(command=command, nodes=2, tasks=1, extra=(), more="restart_in_place = false"))
    until(lambda: not trains.rows(), seconds=150)
    diagnosis = json.loads(trains.opsctl("why", "t", "--json"))
    [attempt] = trains.run().attempts()
    [log] = trains.run().attempt_logs(attempt.name).glob("*-1.log")
    assert (diagnosis["kind"], diagnosis["cause"], diagnosis["rank"]) == ("gpu", "gpu-ecc", 1)
    assert f"{diagnosis['node']}-1.log" == log.name
    assert diagnosis["attempt"] == attempt.name


def test_stacks_of_all_running_ranks_are_shown(trains, tmp_path):
    (tmp_path / "hang.py").write_text(HANG)
    command = (sys.executable, str(tmp_path / "hang.py"), str(ROOT))
    trains.opsctl("launch", trains.toml(command=command, nodes=2, tasks=1, extra=(), processes_per_node=2))
    until(lambda: len(list(trains.run().path.glob("ready-*"))) == 4, seconds=150)
    for more in ((), ("--signal",)):
        lines = trains.opsctl("stacks", "t", "--seconds", "30", *more).splitlines()
        assert [line.partition(" at ")[0].partition(") in ")[2] for line in lines[:2]] == ["broadcast", "all_reduce"]
        assert lines[0].startswith("1 rank (node ")
        assert lines[1].startswith("3 ranks (node ")


DEAF = """
import os, sys, time
rank = os.environ["RANK"]
if os.fork() == 0:
    time.sleep(600)
open(os.environ["TRAIN_RUN_DIR"] + "/ready-" + rank, "w").close()
def all_reduce(): time.sleep(600)
def broadcast(): time.sleep(600)
(broadcast if rank == "1" else all_reduce)()
"""
PY_SPY = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
NO_PTRACE = '#!/bin/sh\nexec setpriv --bounding-set=-sys_ptrace --inh-caps=-all {0} "$@"\n'


@pytest.mark.root
@pytest.mark.skipif(PY_SPY is None, reason="needs py-spy: pip install py-spy")
def test_stacks_are_read_through_the_job_or_by_ssh(trains, tmp_path):
    (tmp_path / "deaf.py").write_text(DEAF)
    command = (sys.executable, str(tmp_path / "deaf.py"))
    refused = trains.place / "refused"
    refused.write_text(NO_PTRACE.format(PY_SPY))
    refused.chmod(0o755)
    with sshd(trains.place, [f"node00{number}" for number in range(1, 5)]) as daemon:
        (daemon.place / "user").chmod(0o644)  # other users read the key too
        trains.site.write_text(trains.site.read_text() + daemon.toml)
        trains.opsctl("launch", trains.toml(command=command, nodes=2, tasks=1, extra=(), processes_per_node=2))
        until(lambda: len(list(trains.run().path.glob("ready-*"))) == 4, seconds=150)

        def read_stacks(program: str | None = PY_SPY, *more: str) -> list[str]:
            return trains.opsctl("stacks", "t", "--seconds", "0", "--py-spy", program, *more).splitlines()

        through_the_job = read_stacks()
        odd = re.fullmatch(r"1 rank \(node (\S+): 1\) in broadcast at deaf.py:\d+", through_the_job[0])[1]
        assert re.fullmatch(r"3 ranks \(.*\) in all_reduce at deaf.py:\d+", through_the_job[1])
        trains.site.write_text(trains.site.read_text().replace('"srun", "job", ', ""))
        assert read_stacks(PY_SPY, "--native")[0].startswith(f"1 rank (node {odd}: 1) in ")
        by_others = as_user(65534, 65534, lambda: "\n".join(read_stacks())).splitlines()
        assert by_others[:2] == through_the_job[:2]
        assert by_others[2].startswith("the ranks could not be asked: ")

        lines = read_stacks(str(refused))
        assert re.fullmatch(rf"4 ranks \(.*\) {REFUSED}", lines[0])
        assert lines[1] == PTRACE
        daemon.config.write_text(daemon.config.read_text().replace(f"Port {daemon.ports[odd]}", "Port 1"))
        lines = read_stacks()
        assert re.fullmatch(r"2 of 4 ranks did not answer: [0-3,-]+", lines[0])
        assert re.fullmatch(r"2 ranks \(node \S+: [0-3,-]+\) in all_reduce at deaf.py:\d+", lines[1])
        assert lines[2] == f"{odd} could not be reached: ssh as root: connection refused"


def test_srun_with_an_unknown_option_has_begun_nothing(trains):
    """The srun of a Slurm before 20.11 does not know --overlap."""
    done = trains.app.engine_runner.run(("srun", "--no-such-option", "true"), timeout=250)
    assert NOT_STARTED.search(done.err), done.err


def test_stacks_and_why_need_an_attempt(trains):
    trains.opsctl("launch", trains.toml())
    assert trains.refusal("stacks", "t").message == "t: nothing runs"
    assert trains.refusal("why", "t").message == "t: no attempt has ended"
