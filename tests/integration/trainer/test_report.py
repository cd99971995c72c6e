"""The heartbeats and the stop reason."""

import pytest

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.contract import Env, Phase, TrainerStop, read_heartbeat, read_stop_reason
from opsctl.trainer.errors import Refused
from opsctl.trainer.heartbeats import Pulse, write_stop_reason
from opsctl.trainer.rank_process import RankProcess, from_environment
from opsctl.trainer.run_state import RunState

CONFIG = TrainerConfig.model_validate({"steps": 100, "log": {"every": 2}, "limits": {"save_s": 33.0}})


def process(rank=0, local_rank=0):
    return RankProcess(rank=rank, world_size=4, local_rank=local_rank, node="n7")


def test_rank_0_and_first_rank_of_a_node_write_heartbeats(tmp_path):
    environ = {Env.HEARTBEAT_DIR: str(tmp_path), Env.ATTEMPT: "7_1.0"}
    for rank, local in ((0, 0), (1, 1), (2, 0)):
        node = "n7" if rank < 2 else "n8"
        who = RankProcess(rank=rank, world_size=4, local_rank=local, node=node)
        Pulse(environ, who, CONFIG).write_heartbeat(Phase.SAVE, RunState(step=3, notes=["disk full"]))
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
def test_the_longest_that_a_phase_may_take_is_in_the_heartbeat(tmp_path, phase, slowest, limit):
    config = TrainerConfig.model_validate({"steps": 1, "limits": {"init_s": 11.0, "exit_s": 22.0, "save_s": 33.0}})
    Pulse({Env.HEARTBEAT_DIR: str(tmp_path)}, process(), config).write_heartbeat(
        phase, RunState(slowest_step_s=slowest)
    )
    assert read_heartbeat(tmp_path / "train.json").limit_s == limit


def test_heartbeat_interval_and_phases_are_respected(tmp_path):
    pulse, state, path = (
        Pulse({Env.HEARTBEAT_DIR: str(tmp_path)}, process(), CONFIG),
        RunState(),
        tmp_path / "train.json",
    )
    pulse.write_heartbeat(Phase.TRAIN, state)
    state.step = 1
    pulse.write_heartbeat(Phase.TRAIN, state)
    assert read_heartbeat(path).step == 0
    pulse.write_heartbeat(Phase.SAVE, state)
    assert read_heartbeat(path).step == 1


def test_a_heartbeat_that_cannot_be_written_is_noted_once_and_stops_nothing(tmp_path, capsys):
    pulse, state = Pulse({Env.HEARTBEAT_DIR: str(tmp_path / "gone")}, process(local_rank=1), CONFIG), RunState()
    for phase in (Phase.TRAIN, Phase.SAVE, Phase.TRAIN):
        pulse.write_heartbeat(phase, state)
    assert len(state.notes) == 1
    assert "cannot be written" in capsys.readouterr().out


def test_the_stop_reason(tmp_path):
    write_stop_reason({}, TrainerStop.KILL, RunState(), detail="")  # nobody asked for it
    path = tmp_path / "stop.json"
    state = RunState(step=5, checkpoint_step=4, notes=["a", "b"])
    write_stop_reason({Env.STOP_REASON: str(path)}, TrainerStop.PAUSE, state, detail="why")
    left = read_stop_reason(path)
    assert (left.reason, left.step, left.checkpoint_step, left.detail, left.notes) == (
        TrainerStop.PAUSE,
        5,
        4,
        "why",
        ("a", "b"),
    )


def test_ranks_of_torchrun_of_srun_and_of_nobody():
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "SLURM_PROCID": "0"}
    srun = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n2"}
    assert (from_environment(torchrun).rank, from_environment(torchrun).local_rank) == (3, 1)
    assert from_environment(srun) == RankProcess(rank=2, world_size=4, local_rank=0, node="n2")
    assert from_environment(srun | {Env.NODE: "x"}).name == "x-0"
    assert (from_environment({}).rank, from_environment({}).world_size) == (0, 1)
    with pytest.raises(Refused, match="RANK is 'x'"):
        from_environment({"RANK": "x"})
