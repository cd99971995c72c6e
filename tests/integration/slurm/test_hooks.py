"""Hooks of a train on a real Slurm."""

from tests.support.trains import Trains, until

TRAINER = """
for step in 1 2; do
    mkdir "$TRAIN_CHECKPOINT_DIR/step$step"
    touch "$TRAIN_CHECKPOINT_DIR/step$step/weights"
    sleep 1
done
"""


def test_hooks_of_a_train_run_in_its_job(trains: Trains) -> None:
    script, out = trains.place / "train.sh", trains.place / "out"
    script.write_text(TRAINER)
    hooks = "\n".join(
        [
            "[hooks]",
            f"on_checkpoint = 'echo saved $TRAIN_STEP >>{out}'",
            f"on_attempt_end = 'echo ended $TRAIN_OUTCOME >>{out}; exit 3'",
            f"on_finished = 'echo $TRAIN_NAME is finished >>{out}'",
        ]
    )
    trains.opsctl("launch", trains.toml(command=("bash", str(script)), more=hooks, extra=()))
    until(lambda: not trains.rows())
    lines = out.read_text().splitlines()
    assert lines[-3:] == ["saved 2", "ended finished", "t is finished"]
    assert "exit code 3" in (trains.run().logs / "hooks.log").read_text()
