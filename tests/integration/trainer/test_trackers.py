"""The variables of trackers with the real libraries, offline: a second process continues the run of the first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.host.system import SystemClock
from opsctl.integrations import opsctl_contract
from opsctl.launch.tracker_runs import tracker_variables
from opsctl.state.events import Submitting
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir

WANDB = """
import wandb
run = wandb.init(project="p", mode="offline")
print("run", run.id)
run.finish()
"""
MLFLOW = """
import sys
import mlflow, opsctl_contract
step = int(sys.argv[1])
mlflow.set_tracking_uri("sqlite:///store.db")
with mlflow.start_run() as run:
    mlflow.log_metric("loss", 1.0, step=step)
    opsctl_contract.Contract().after_step(step)
history = mlflow.MlflowClient("sqlite:///store.db").get_metric_history(run.info.run_id, "loss")
print("steps", [metric.step for metric in history])
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "gpt")
    run.create()
    Journal(run, SystemClock()).append(Submitting(nonce="a" * 32, tasks=3, after=""))
    return run


def start(run: RunDir, code: str, *words: str) -> str:
    """Run `code` as rank 0 of an attempt and return its output."""
    paths = [str(Path(opsctl_contract.__file__).parent), os.environ.get("PYTHONPATH", "")]
    contract = {
        "TRAIN_RUN_DIR": str(run.path),
        "TRAIN_STOP_REQUEST": str(run.path / "stop"),
        "TRAIN_MLFLOW_RUN": str(run.mlflow_run),
    }
    variables = tracker_variables(run, Journal(run, SystemClock()).events(), {})
    env = {**os.environ, **contract, **variables, "PYTHONPATH": ":".join(filter(None, paths)), "WANDB_SILENT": "true"}
    argv = [sys.executable, "-c", code, *words]
    done = subprocess.run(argv, env=env, cwd=run.path, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_weights_and_biases_takes_the_id(run: RunDir) -> None:
    pytest.importorskip("wandb", reason="needs wandb: make integrations")
    first, second = start(run, WANDB), start(run, WANDB)
    assert first == second
    assert first.startswith("run gpt-")


def test_mlflow_continues_the_recorded_run(run: RunDir) -> None:
    pytest.importorskip("mlflow", reason="needs mlflow: make integrations")
    assert start(run, MLFLOW, "1") == "steps [1]\n"
    assert start(run, MLFLOW, "2") == "steps [1, 2]\n"


def test_trainer_draws_in_one_run_of_weights_and_biases(run: RunDir) -> None:
    """Steps that an attempt repeats are drawn again, and a tracker that fails stops no training."""
    pytest.importorskip("wandb", reason="needs wandb: make integrations")
    code = """
import sys
from opsctl.trainer.config_tables import LogConfig
from opsctl.trainer.metrics_log import Metrics
from opsctl.trainer.run_state import RunState
import os
metrics = Metrics(LogConfig(wandb=True), os.environ, step=0, writes=False, tracks=True, settings={"steps": 5})
for step in (int(sys.argv[1]), int(sys.argv[1]) + 1):
    state = RunState(step=step)
    metrics.evaluation(2.5, batches=1, state=state, name="code")
    print(state.notes, metrics._charts[0]._run.summary.get("lm-loss-validation/code"), metrics._charts[0]._run.id)
metrics.close()
"""
    os.environ["WANDB_MODE"] = "offline"
    try:
        first, second = (start(run, code, step).splitlines()[-1] for step in ("4", "3"))
    finally:
        del os.environ["WANDB_MODE"]
    assert first.startswith("[] 2.5 gpt-")
    assert first == second
    assert len(list((run.path / "metrics" / "wandb").glob("offline-run-*"))) == 2
