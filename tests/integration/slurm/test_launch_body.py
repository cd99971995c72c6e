"""Rendered bodies with the real sbatch and srun, without a guard: exit codes and hostile text on several ranks."""

import subprocess
import sys
from pathlib import Path

from opsctl.base.model import Job
from opsctl.launch.launch_plan import render_body
from opsctl.settings.loader import TrainSettings, parse
from opsctl.state.run_dir import RunDir
from tests.support.hostile_words import HOSTILE_WORDS
from tests.support.trains import Trains, until

RANK_1_FAILS = 'if [ "$RANK" = 1 ]; then sleep 0.3; exit "$1"; fi; exec sleep 600'


def submit(trains: Trains, name: str, command: list[str], **top: object) -> str:
    """Submit the body on two nodes with two ranks each and return the job id."""
    train = parse(
        TrainSettings, {"name": name, "command": command, "slurm": {"nodes": 2, "time_limit": "5"}, **top}, name
    )
    run = RunDir(trains.root / name)
    run.create()
    run.body.write_text(render_body(train, run, python=sys.executable))
    argv = (
        "sbatch",
        "--parsable",
        "--nodes=2",
        "--ntasks-per-node=2",
        "--cpus-per-task=1",
        "--mem=10",
        "--time=5",
        f"--output={run.main_log}",
        str(run.body),
    )
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=250, cwd=trains.place)
    return done.stdout.strip()


def wait_for_end(trains: Trains, job_id: str) -> Job:
    """Wait until the job has ended and return it."""

    def find_ended() -> list[Job]:
        return [job for job in trains.app.slurm.jobs() if job.id == job_id and job.state.is_final]

    return until(find_ended)[0]


def test_job_has_the_exit_code_of_the_failed_rank(trains: Trains) -> None:
    jobs = {code: submit(trains, f"c{code}", ["bash", "-c", RANK_1_FAILS, "x", str(code)]) for code in (1, 85)}
    jobs[0] = submit(trains, "c0", ["true"])
    assert {code: wait_for_end(trains, job).exit_code for code, job in jobs.items()} == {0: "0:0", 1: "1:0", 85: "85:0"}


def test_hostile_text_reaches_every_rank(trains: Trains) -> None:
    write = 'printf "%s\\0" "$V" "$MASTER_ADDR" "$NNODES" "$WORLD_SIZE" "$@" >"$TRAIN_RUN_DIR/rank-$RANK"'
    job = submit(trains, "h", ["bash", "-c", write, "x", *HOSTILE_WORDS], environment={"V": "".join(HOSTILE_WORDS)})
    assert wait_for_end(trains, job).exit_code == "0:0"
    written = [(trains.root / "h" / f"rank-{rank}").read_bytes().decode().split("\0")[:-1] for rank in range(4)]
    assert written == [["".join(HOSTILE_WORDS), "127.0.0.1", "2", "4", *HOSTILE_WORDS]] * 4
    assert not list(Path(trains.place).rglob("pwned"))
