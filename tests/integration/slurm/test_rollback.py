"""`opsctl rollback` and its undo on a real Slurm: a running train stops, and goes on from the chosen checkpoint."""

import json
import sys
from pathlib import Path

import pytest

from opsctl.base.errors import InputError
from opsctl.base.findings import Severity
from opsctl.state.events import RolledBack
from opsctl.state.switches import Switch, arm
from tests.support.findings import make_finding
from tests.support.trains import Trains, until

TRAINER = Path(__file__).parents[2] / "support" / "tracked_trainer.py"
COMMAND = (sys.executable, "-P", str(TRAINER), "100000", "5", "0.02")
WORDS = """
[rollback]
step_argument = '--ckpt-step {step}'
skip_samples_argument = '--skip {first}:{last}'
lr_scale_argument = '--lr-scale={scale}'
"""


def launch(trains: Trains, more: str = "") -> None:
    trains.opsctl("launch", trains.toml(command=COMMAND, more=more, extra=()))
    until(lambda: 15 in steps(trains))


def steps(trains: Trains) -> list[int]:
    """Of checkpoints whose file is written: its directory appears first."""
    states = trains.run().checkpoints.glob("iter_*/mp_rank_00/model_optim_rng.pt")
    return sorted(int(path.parts[-3].removeprefix("iter_")) for path in states if path.stat().st_size)


def starts(trains: Trains) -> list[str]:
    path = trains.run().path / "starts"
    return path.read_text().splitlines() if path.exists() else []


def saved_state(trains: Trains, step: int) -> str:
    return (trains.run().checkpoints / f"iter_{step:07d}/mp_rank_00/model_optim_rng.pt").read_text()


@pytest.mark.long
def test_rollback_of_a_running_train_and_its_undo(trains: Trains) -> None:
    launch(trains, WORDS)
    first = saved_state(trains, 15)
    before = trains.run().config.read_text()
    text = trains.opsctl("rollback", "t", "--to", "5", "--skip-samples", "80-99", "--lr-scale", "0.5")
    assert "the running task is asked to save and stop" in text
    assert "rolled back to step 5; set aside: " in text
    aside = trains.run().checkpoints / ".rolled-back-0001"
    assert (aside / "iter_0000015").is_dir(), "nothing is deleted"
    until(lambda: len(starts(trains)) == 2)
    assert starts(trains)[1] == "5 --skip 80:99 --lr-scale=0.5 --ckpt-step 5"
    assert RolledBack in trains.kinds()
    until(lambda: 15 in steps(trains))
    assert saved_state(trains, 15) != first

    text = trains.opsctl("rollback", "t", "--undo")
    assert "rollback 1 to step 5 is undone" in text
    assert saved_state(trains, 15) == first
    assert (trains.run().checkpoints / ".undone-0001" / "iter_0000010").is_dir()
    until(lambda: len(starts(trains)) == 3)
    assert int(starts(trains)[2]) >= 15, "the newest checkpoint of before, and no words"
    assert trains.run().config.read_text() == before


def test_dry_run_and_refusals_change_nothing(trains: Trains) -> None:
    launch(trains)
    run = trains.run()
    planned = json.loads(trains.opsctl("rollback", "t", "--to", "5", "--dry-run", "--json"))
    assert (planned["step"], planned["would_change"], len(planned["would_stop"])) == (5, True, 1)
    assert str(run.checkpoints / "iter_0000010") in planned["would_set_aside"]
    with pytest.raises(InputError, match=r"no checkpoint of step 7; checkpoints exist of steps .*5"):
        trains.opsctl("rollback", "t", "--to", "7")
    with pytest.raises(InputError, match=r"skip_samples_argument is not set"):
        trains.opsctl("rollback", "t", "--to", "5", "--skip-samples", "1-2")
    with pytest.raises(InputError, match="no alert about the loss is open"):
        trains.opsctl("rollback", "t")
    with pytest.raises(InputError, match="there is no rollback to undo"):
        trains.opsctl("rollback", "t", "--undo")
    finding = make_finding("loss/t", Severity.CRITICAL, "spiked", train="t", since_step=12, wants_rollback=True)
    trains.app.alerting.ledger.record([finding])
    assert json.loads(trains.opsctl("rollback", "t", "--dry-run", "--json"))["step"] == 10
    arm(run, Switch.KILL, why="x")
    with pytest.raises(InputError, match="armed the kill switch"):
        trains.opsctl("rollback", "t", "--to", "5")
    assert not (run.path / "rollbacks").exists()
    assert not (run.checkpoints / ".rolled-back-0001").exists()


def test_ended_train_is_rolled_back_without_a_queue(trains: Trains) -> None:
    launch(trains)
    trains.opsctl("kill-switch", "arm", "t", "--reason", "x")
    until(lambda: not trains.rows())
    trains.opsctl("kill-switch", "disarm", "t")
    text = trains.opsctl("rollback", "t", "--to", "5")
    assert text.count("nothing is queued; opsctl launch") == 2  # what would be done, and what was done
    assert "what the running task saves" not in text
    assert steps(trains) == [5]
    assert "was already rolled back to step 5" in trains.opsctl("rollback", "t", "--to", "5")
    trains.opsctl("rollback", "t", "--undo")
    assert {5, 10, 15} <= set(steps(trains))
    assert "is undone already" in trains.opsctl("rollback", "t", "--undo")
