"""The runs of experiment trackers in the environment of ranks, and in status, on a real Slurm."""

import json
from pathlib import Path

from opsctl.sandbox.cluster import Sandbox
from tests.support.trains import trains_on, until

TRAINER = 'echo "$TRAIN_ATTEMPT $RANK ${WANDB_RUN_ID-none} ${WANDB_RESUME-none}" >>"$1/runs"; exit 1'


def test_rank_0_of_each_attempt_continues_one_run(slurm: Sandbox) -> None:
    with trains_on(slurm) as trains:
        script = trains.place / "train.sh"
        script.write_text(TRAINER)
        environment = '[environment]\nWANDB_ENTITY = "team"\nWANDB_PROJECT = "big"\nWANDB_MODE = "online"'
        config = trains.toml(
            command=("bash", str(script), str(trains.place)),
            extra=(),
            tasks=2,
            processes_per_node=2,
            more=f"restart_in_place = false\n{environment}",
        )
        trains.opsctl("launch", config)
        until(lambda: not trains.rows())
        rows = [line.split() for line in Path(trains.place / "runs").read_text().splitlines()]
        assert len({attempt for attempt, *_ in rows}) == 2
        [run] = {run for _, rank, run, _ in rows if rank == "0"}
        assert run.startswith("t-")
        assert {run for _, rank, run, _ in rows if rank == "1"} == {"none"}
        assert {resume for *_, resume in rows} == {"allow"}
        link = f"https://wandb.ai/team/big/runs/{run}"
        assert json.loads(trains.opsctl("status", "t", "--json"))[0]["links"] == [link]
        assert link in "".join(trains.opsctl("status", "t").split())
