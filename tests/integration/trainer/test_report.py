"""What the trainer reports: heartbeats, the stop reason, a cron that no longer ticks, loss spikes."""

import random
import time
from pathlib import Path

import pytest

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.config_tables import SpikeConfig
from opsctl.trainer.contract import Env, Phase, TrainerStop, read_heartbeat, read_stop_reason
from opsctl.trainer.errors import Refused
from opsctl.trainer.heartbeats import Pulse, warn_of_silent_watcher, write_stop_reason
from opsctl.trainer.loss_spikes import Spikes
from opsctl.trainer.rank_process import RankProcess, from_environment
from opsctl.trainer.run_state import RunState

CONFIG = TrainerConfig.model_validate({"steps": 100, "log": {"every": 2}, "limits": {"save_s": 33.0}})


def make_process(rank=0, local_rank=0):
    return RankProcess(rank=rank, world_size=4, local_rank=local_rank, node="n7")


def test_rank_0_and_first_rank_of_a_node_write_heartbeats(tmp_path):
    environ = {Env.HEARTBEAT_DIR: str(tmp_path), Env.ATTEMPT: "7_1.0"}
    for rank, local in ((0, 0), (1, 1), (2, 0)):
        node = "n7" if rank < 2 else "n8"
        process = RankProcess(rank=rank, world_size=4, local_rank=local, node=node)
        Pulse(environ, process, CONFIG).write_heartbeat(Phase.SAVE, RunState(step=3, notes=["disk full"]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["n7-0.json", "n8-0.json", "train.json"]
    heartbeat = read_heartbeat(tmp_path / "n8-0.json")
    assert (heartbeat.attempt, heartbeat.node, heartbeat.rank, heartbeat.phase, heartbeat.step) == (
        "7_1.0",
        "n8",
        2,
        Phase.SAVE,
        3,
    )
    assert (heartbeat.limit_s, heartbeat.last_steps, heartbeat.note) == (33.0, 100, "disk full")


@pytest.mark.parametrize(
    ("phase", "slowest", "limit"),
    [
        (Phase.INIT, 0.0, 11.0),
        (Phase.EXIT, 0.0, 22.0),
        (Phase.TRAIN, 1.0, 120.0 + 5.0),
        (Phase.TRAIN, 60.0, 20 * 60.0 + 5.0),
        (Phase.EVAL, 60.0, 20 * 60.0 + 5.0),
    ],
)
def test_heartbeat_holds_the_time_limit_of_the_phase(tmp_path, phase, slowest, limit):
    config = TrainerConfig.model_validate({"steps": 1, "limits": {"init_s": 11.0, "exit_s": 22.0, "save_s": 33.0}})
    Pulse({Env.HEARTBEAT_DIR: str(tmp_path)}, make_process(), config).write_heartbeat(
        phase, RunState(slowest_step_s=slowest)
    )
    assert read_heartbeat(tmp_path / "train.json").limit_s == limit


def test_heartbeat_interval_and_phases_are_respected(tmp_path):
    pulse = Pulse({Env.HEARTBEAT_DIR: str(tmp_path)}, make_process(), CONFIG)
    state, path = RunState(), tmp_path / "train.json"
    pulse.write_heartbeat(Phase.TRAIN, state)
    state.step = 1
    pulse.write_heartbeat(Phase.TRAIN, state)
    assert read_heartbeat(path).step == 0
    pulse.write_heartbeat(Phase.SAVE, state)
    assert read_heartbeat(path).step == 1


def test_unwritable_heartbeat_is_noted_once(tmp_path, capsys):
    pulse, state = Pulse({Env.HEARTBEAT_DIR: str(tmp_path / "gone")}, make_process(local_rank=1), CONFIG), RunState()
    for phase in (Phase.TRAIN, Phase.SAVE, Phase.TRAIN):
        pulse.write_heartbeat(phase, state)
    assert len(state.notes) == 1
    assert "cannot be written" in capsys.readouterr().out


def test_stop_reason_is_written_on_request(tmp_path):
    write_stop_reason({}, TrainerStop.KILL, RunState(), detail="")  # no stop reason file is requested
    path = tmp_path / "stop.json"
    state = RunState(step=5, checkpoint_step=4, notes=["a", "b"])
    write_stop_reason({Env.STOP_REASON: str(path)}, TrainerStop.PAUSE, state, detail="why")
    stop = read_stop_reason(path)
    assert (stop.reason, stop.step, stop.checkpoint_step, stop.detail, stop.notes) == (
        TrainerStop.PAUSE,
        5,
        4,
        "why",
        ("a", "b"),
    )


def test_rank_is_read_from_torchrun_or_srun():
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "SLURM_PROCID": "0"}
    srun = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n2"}
    assert (from_environment(torchrun).rank, from_environment(torchrun).local_rank) == (3, 1)
    assert from_environment(srun) == RankProcess(rank=2, world_size=4, local_rank=0, node="n2")
    assert from_environment(srun | {Env.NODE: "x"}).name == "x-0"
    assert (from_environment({}).rank, from_environment({}).world_size) == (0, 1)
    with pytest.raises(Refused, match="RANK is 'x'"):
        from_environment({"RANK": "x"})


def test_silent_cron_is_noted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tick, state = tmp_path / "last-tick", RunState(save_s=1.0)
    warn_of_silent_watcher(tick, state)
    tick.write_text(f"{time.time() - 3600:.0f}\n")
    warn_of_silent_watcher(tick, state)
    assert state.notes == []
    tick.write_text("4000\n")
    for _ in range(2):
        warn_of_silent_watcher(tick, state)
    (text,) = capsys.readouterr().out.splitlines()
    assert text == f"the watchdogs do not run: cron last ticked at {time.ctime(4000)} ({tick})"
    assert state.notes == [text]


def test_only_rank_0_checks_the_last_tick(tmp_path: Path) -> None:
    tick = tmp_path / "last-tick"
    tick.write_text("4000\n")
    note_counts = []
    for rank in range(2):
        process, state = RankProcess(rank=rank, world_size=2, local_rank=rank, node="n1"), RunState(save_s=1.0)
        config = TrainerConfig.model_validate({"steps": 9})
        Pulse({Env.LAST_TICK: str(tick)}, process, config).write_heartbeat(Phase.TRAIN, state)
        note_counts.append(len(state.notes))
    assert note_counts == [1, 0]


NOISE = random.Random(7)


def draw_losses(number, level=3.0):
    return [level + NOISE.uniform(-0.1, 0.1) for _ in range(number)]


def find_spikes(losses, **changes):
    spikes = Spikes(SpikeConfig(**({"window": 20} | changes)))
    return [number for number, loss in enumerate(losses) if spikes.add_loss(loss)]


def test_spike_is_reported_once_with_numbers():
    spikes = Spikes(SpikeConfig(window=20))
    assert not any(map(spikes.add_loss, draw_losses(40)))
    text = spikes.add_loss(5.0)
    assert text.startswith("loss spike: 5.0000 is ")
    assert text.endswith("the mean of the 20 steps before")
    assert not any(map(spikes.add_loss, (4.9, 4.0, 3.9)))  # the end of the same spike


def test_next_spike_is_reported_again():
    assert find_spikes([*draw_losses(40), 5.0, 4.5, *draw_losses(5), 6.0]) == [40, 47]


def test_losses_that_stay_high_become_normal():
    assert find_spikes([*draw_losses(40), *draw_losses(60, level=6.0), 9.0]) == [40, 100]


def test_falling_loss_and_first_steps_are_no_spikes():
    assert find_spikes([9 - 0.05 * n for n in range(150)]) == []
    assert find_spikes([9.0, *draw_losses(5), 9.0, *draw_losses(10)]) == []


def test_equal_losses_leave_room_for_noise():
    assert find_spikes([*[2.0] * 40, 2.05, 2.11, 2.2]) == [42]


def test_disabled_detection_reports_nothing():
    assert find_spikes([*draw_losses(40), 50.0], deviations=0) == []
    assert find_spikes([*draw_losses(40), float("nan"), float("inf")]) == []
