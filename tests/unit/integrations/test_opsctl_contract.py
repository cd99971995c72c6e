"""The stand-alone file for trainers: what it reads, what it writes, and what it needs."""

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opsctl.integrations import opsctl_contract
from opsctl.integrations.opsctl_contract import Contract, StepRequest, newest_checkpoint
from opsctl.trainer.contract import Env, Phase, TrainerStop, read_heartbeat, read_stop_reason
from tests.support.cases import read_cases

SOURCE = Path(opsctl_contract.__file__)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of the first rank of a train; the deadline is far away."""
    names = {str(name): tmp_path / name.value.lower().removeprefix("train_") for name in Env}
    for directory in (Env.HEARTBEAT_DIR, Env.CHECKPOINT_DIR):
        names[directory].mkdir()
    names[Env.DEADLINE].write_text(f"{time.time() + 9999}\n")
    return {**{name: str(path) for name, path in names.items()}, "TRAIN_ATTEMPT": "1_1.0", "TRAIN_NODE": "node001"}


def arm(environ: dict[str, str], name: Env) -> Path:
    path = Path(environ[name])
    path.touch()
    return path


def test_outside_a_train_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    contract = Contract({})
    contract.begin(0)
    assert contract.after_step(1) == StepRequest(save=False, stop=False)
    contract.saved(1)
    contract.end(1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(*read_cases(__file__, "file_asks_for_a_save_and_a_stop", name=Env, reason=TrainerStop))
def test_file_asks_for_a_save_and_a_stop(environ: dict[str, str], name: Env, reason: TrainerStop) -> None:
    contract = Contract(environ, poll_s=0)
    assert contract.after_step(1) == StepRequest(save=False, stop=False)
    arm(environ, name)
    assert contract.after_step(2) == StepRequest(save=True, stop=True)
    assert heartbeat(environ).phase is Phase.SAVE
    contract.saved(2)
    contract.end(2)
    stop = read_stop_reason(Path(environ[Env.STOP_REASON]))
    assert stop and (stop.reason, stop.step, stop.checkpoint_step) == (reason, 2, 2)
    assert not Path(environ[Env.FINISHED]).exists()


def heartbeat(environ: dict[str, str]):
    record = read_heartbeat(Path(environ[Env.HEARTBEAT_DIR]) / "train.json")
    assert record
    return record


def test_near_deadline_asks_for_a_stop(environ: dict[str, str]) -> None:
    contract = Contract(environ, poll_s=0)
    assert not contract.after_step(1).stop
    Path(environ[Env.DEADLINE]).write_text(f"{time.time() + 10}\n")
    assert contract.after_step(2).stop
    assert contract.stop_reason == TrainerStop.DEADLINE


def test_save_switch_is_answered_once(environ: dict[str, str]) -> None:
    contract, switch = Contract(environ, poll_s=0), arm(environ, Env.SAVE_SWITCH)
    assert contract.after_step(1) == StepRequest(save=True, stop=False)
    assert contract.after_step(2) == StepRequest(save=False, stop=False)
    contract.saved(2)
    assert not switch.exists()
    arm(environ, Env.SAVE_SWITCH)
    assert contract.after_step(3).save


def test_save_switch_that_was_touched_meanwhile_stays(environ: dict[str, str]) -> None:
    contract, switch = Contract(environ, poll_s=0), arm(environ, Env.SAVE_SWITCH)
    assert contract.after_step(1).save
    os.utime(switch, (1, 1))
    contract.saved(1)
    assert switch.exists()
    assert contract.after_step(2).save


def test_end_without_a_request_is_the_end_of_the_training(environ: dict[str, str]) -> None:
    contract = Contract(environ)
    contract.after_step(8, last_steps=8, loss=2.5)
    contract.end(8)
    stop = read_stop_reason(Path(environ[Env.STOP_REASON]))
    assert stop and stop.reason is TrainerStop.FINISHED
    assert Path(environ[Env.FINISHED]).read_text() == "step 8\n"
    record = heartbeat(environ)
    assert (record.phase, record.step, record.last_steps, record.loss) == (Phase.EXIT, 8, 8, 2.5)
    assert (Path(environ[Env.HEARTBEAT_DIR]) / "node001-0.json").exists()


def test_second_rank_of_a_node_writes_no_heartbeat(environ: dict[str, str]) -> None:
    Contract({**environ, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}).begin(0)
    assert list(Path(environ[Env.HEARTBEAT_DIR]).iterdir()) == []


def test_unfinished_end_leaves_no_mark(environ: dict[str, str]) -> None:
    Contract(environ).end(8, finished=False)
    assert not Path(environ[Env.FINISHED]).exists()
    assert not Path(environ[Env.STOP_REASON]).exists()


def test_resumed_run_is_polled_as_often_as_a_new_one(environ: dict[str, str]) -> None:
    contract = Contract(environ, poll_s=1)
    contract.after_step(5001)
    arm(environ, Env.STOP_REQUEST)
    for step in range(5002, 5100):  # a poll may come every second, and a step takes 0.05 s or longer
        time.sleep(0.05)
        contract.after_step(step)
        if contract.stop_reason:
            break
    assert contract.stop_reason


def test_failed_write_does_not_stop_the_training(environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    environ[Env.HEARTBEAT_DIR] = "/proc/nowhere"
    contract = Contract(environ, poll_s=0)
    contract.after_step(1)
    contract.after_step(2)
    assert capsys.readouterr().out.count("the heartbeat train.json cannot be written") == 1


def test_checkpoint_gets_its_name_when_it_is_complete(environ: dict[str, str]) -> None:
    contract, directory = Contract(environ), Path(environ[Env.CHECKPOINT_DIR])
    for step in (10, 20, 30):
        with contract.checkpoint(step, keep=2) as path:
            Path(path).mkdir()
            assert not (directory / f"step-{step}").exists()
        time.sleep(0.01)
    with pytest.raises(OSError, match="disk"), contract.checkpoint(40) as path:
        Path(path).mkdir()
        raise OSError("disk")
    assert sorted(path.name for path in directory.iterdir()) == [".saving-step-40", "step-20", "step-30"]
    assert newest_checkpoint(directory) == str(directory / "step-30")


def test_newest_checkpoint_is_complete(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "nowhere") is None
    for number, (name, mark) in enumerate({"checkpoint-5": "trainer_state.json", "checkpoint-10": "half"}.items()):
        (tmp_path / name).mkdir()
        (tmp_path / name / mark).touch()
        os.utime(tmp_path / name / mark, (number, number))
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-5")
    (tmp_path / "epoch=0-step=20.ckpt").touch()
    assert newest_checkpoint(tmp_path) == str(tmp_path / "epoch=0-step=20.ckpt")


def test_file_needs_the_standard_library_only() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 9))
    modules = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert {str(module).partition(".")[0] for module in modules} <= sys.stdlib_module_names


def test_import_loads_no_library() -> None:
    code = "import opsctl.integrations, opsctl.integrations.opsctl_contract, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250)
    assert not {"torch", "transformers", "lightning", "pydantic", "click"} & set(done.stdout.split())


RANKS = """
import os, sys, time, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
import opsctl_contract
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(os.environ["RANK"]), world_size=2)
contract = opsctl_contract.Contract(poll_s=0.2)
for step in range(1, 10_000):
    time.sleep(0.002 if contract.rank else 0.004)
    request = contract.after_step(step)
    if request.stop:
        break
print(step)
"""


@pytest.mark.torch
def test_all_ranks_stop_at_the_same_step(environ: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the trainer extra")
    argv = [sys.executable, "-c", RANKS, str(SOURCE.parent), str(tmp_path / "meeting")]
    ranks = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, **environ, "RANK": str(rank)})
        for rank in range(2)
    ]
    limit = time.monotonic() + 250
    while not (Path(environ[Env.HEARTBEAT_DIR]) / "train.json").exists():
        assert time.monotonic() < limit
        time.sleep(0.1)
    arm(environ, Env.STOP_REQUEST)
    steps = [rank.communicate(timeout=250)[0] for rank in ranks]
    assert steps[0] == steps[1] != "9999\n"
    assert json.loads((Path(environ[Env.HEARTBEAT_DIR]) / "train.json").read_text())["phase"] == "save"


@pytest.mark.torch
def test_transformers_callback_is_a_trainer_callback(environ: dict[str, str]) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the export extra")
    installed = pytest.importorskip("opsctl.integrations.transformers")
    for callback in (
        opsctl_contract.transformers_callback(),
        installed.TransformersCallback(Contract(environ, poll_s=0)),
    ):
        assert isinstance(callback, transformers.TrainerCallback)
    arm(environ, Env.STOP_REQUEST)
    state, control = transformers.TrainerState(global_step=7, max_steps=9), transformers.TrainerControl()
    control.should_evaluate = True
    callback.on_train_begin(None, transformers.TrainerState(global_step=6, max_steps=9), control)
    callback.on_step_end(None, state, control)
    assert (control.should_save, control.should_training_stop, control.should_evaluate) == (True, True, False)
    with pytest.raises(SystemExit) as exit_info:
        callback.on_train_end(None, state, control)
    assert exit_info.value.code == 0
