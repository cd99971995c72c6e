"""Logs of nodes, written by the ranks of real steps of Slurm."""

import json
import os
import signal
import sys
from contextlib import suppress

import psutil

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


def find_processes(run: RunDir, word: str) -> list[psutil.Process]:
    """Return the processes of the ranks whose command has the word."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_here = process.environ().get("TRAIN_RUN_DIR") == str(run.path) and process.name() != "srun"
            found += [process] * (is_here and word in process.cmdline())
    return found


def test_command_dies_with_its_shim_and_slurm_ends_the_step(trains: Trains) -> None:
    """What left its session is Slurm's to end; the proctrack/linuxproc of the sandbox may miss such a process."""
    run = launch(trains, WAIT)
    until(lambda: len(list(run.path.glob("ready-*"))) == 6)
    helpers, wrappers = find_processes(run, "3000"), find_processes(run, "--logs")
    assert len({wrapper.environ()["SLURM_PROCID"] for wrapper in wrappers}) == len(wrappers) == len(helpers) == 6
    try:
        os.kill(wrappers[0].pid, signal.SIGKILL)
        until(lambda: not trains.rows())
        until(lambda: not find_processes(run, str(trains.place / "train.py")))
        until(lambda: sum(helper.is_running() for helper in helpers) <= 1)
    finally:
        for helper in helpers:
            with suppress(psutil.Error):
                helper.kill()
