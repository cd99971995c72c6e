"""Logs of nodes, written by the ranks of real steps of Slurm."""

import json
import os
import signal
import sys
from contextlib import suppress

import psutil

from opsctl.guard.attempt_record import find_log, read_start
from opsctl.state.files import list_parts
from opsctl.state.run_dir import RunDir
from tests.support.trains import Trains, until

LINES = 3000
SPEAK = f"""
import os, sys, time
from pathlib import Path
for number in range({LINES}):
    print(number, os.environ["RANK"] * (number % 200))
sys.stdout.flush()
place = Path(os.environ["TRAIN_RUN_DIR"])
(place / ("done-" + os.environ["RANK"])).touch()
while os.environ["RANK"] != "4" or len(list(place.glob("done-*"))) < 6:
    time.sleep(0.05)
raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
"""
WAIT = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "3000"], start_new_session=True)
open(os.environ["TRAIN_RUN_DIR"] + "/ready-" + os.environ["RANK"], "w").close()
time.sleep(3000)
"""


def launch(trains: Trains, program: str) -> RunDir:
    path = trains.place / "train.py"
    path.write_text(program)
    command = (sys.executable, str(path))
    more = "restart_in_place = false"
    trains.opsctl("launch", trains.toml(command=command, nodes=2, processes_per_node=3, tasks=1, extra=(), more=more))
    return trains.run()


def test_ranks_of_a_step_write_whole_lines(trains: Trains) -> None:
    run = launch(trains, SPEAK)
    until(lambda: not trains.rows())
    [attempt] = run.attempts()
    logs = run.attempt_logs(attempt.name)
    assert sorted(path.name.partition("-")[2] for path in logs.glob("*.log")) == ["0..2.log", "3..5.log"]
    for rank in range(6):
        expected = [f"{number} {str(rank) * (number % 200)}" for number in range(LINES)]
        assert trains.opsctl("logs", "t", "--rank", rank, "--all").splitlines()[:LINES] == expected
    main_log = run.main_log.read_text()
    for log in logs.glob("*.log"):
        assert set(log.read_text().splitlines()) <= set(main_log.splitlines())
    run.main_log.write_text("")  # as if srun had lost the lines of the ranks
    diagnosis = json.loads(trains.opsctl("why", "t", "--json"))
    assert (diagnosis["cause"], diagnosis["rank"]) == ("gpu-ecc", 4)
    assert f"{diagnosis['node']}-3..5.log" in diagnosis["log"]


def test_log_is_set_aside_between_jobs(trains: Trains) -> None:
    steps = 'seq -f " iteration %g/ 9000 | lm loss: 2.0E+00 |" ${SLURM_ARRAY_TASK_ID}001 ${SLURM_ARRAY_TASK_ID}999'
    more = "short_attempts = 9\nrestart_in_place = false\n[keep]\nlog_size = 2048"
    command = ("bash", "-c", f"{steps}; [ $SLURM_ARRAY_TASK_ID != 2 ] || exit 7")
    trains.opsctl("launch", trains.toml(command=command, tasks=3, extra=(), more=more))
    until(lambda: not trains.rows())
    parts = list_parts(trains.run().logs / "main_log.txt")
    assert [path.name for path in parts] == [f"main_log.00000{part}.txt" for part in range(3)]
    lines = [line for line in trains.opsctl("logs", "t", "--all").splitlines() if line.startswith("[")]
    assert [int(line.split("/")[0].split()[-1]) for line in lines] == [n for n in range(1001, 4000) if n % 1000]
    assert "the body ended with exit code 7" in read_attempt_log(trains, 2)


def read_attempt_log(trains: Trains, task: int) -> str:
    [attempt] = [attempt for attempt in trains.run().attempts() if attempt.task == task]
    log, begin, _ = find_log(trains.run(), read_start(attempt), None)
    return log.read_bytes()[begin:].decode()


def find_processes(run: RunDir, word: str) -> list[psutil.Process]:
    """Return the processes of the ranks whose command has the word."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_here = process.environ().get("TRAIN_RUN_DIR") == str(run.path) and process.name() != "srun"
            found += [process] * (is_here and word in process.cmdline())
    return found


def test_killed_shim_ends_its_rank_and_the_step(trains: Trains) -> None:
    run = launch(trains, WAIT)
    until(lambda: len(list(run.path.glob("ready-*"))) == 6)
    assert len(find_processes(run, "3000")) == 6
    shims = find_processes(run, "--logs")
    assert len({shim.environ()["SLURM_PROCID"] for shim in shims}) == len(shims) == 6
    rank = shims[0].environ()["SLURM_PROCID"]
    os.kill(shims[0].pid, signal.SIGKILL)
    until(lambda: not trains.rows())
    until(lambda: not find_processes(run, "--logs") + find_processes(run, str(trains.place / "train.py")))
    # proctrack/cgroup ends all of the killed rank; proctrack/linuxproc, of a sandbox, loses what has lost its parents
    until(lambda: {left.environ()["SLURM_PROCID"] for left in find_processes(run, "3000")} <= {rank})
    for left in find_processes(run, "3000"):
        left.kill()
