"""The heartbeats and the stop reason."""

import pytest

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.contract import Env, Phase, TrainerStop, read_heartbeat, read_stop_reason
from opsctl.trainer.errors import Refused
from opsctl.trainer.heartbeats import Pulse, write_stop_reason
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
