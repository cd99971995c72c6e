"""The log line, the JSON metrics and the TensorBoard events."""

import json
import math
import sys
import threading
import time

import pytest

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.config_tables import LogConfig
from opsctl.trainer.contract import Env
from opsctl.trainer.errors import Refused
from opsctl.trainer.metrics_log import Metrics
from opsctl.trainer.model_size import peak_tflops
from opsctl.trainer.run_state import RunState
from opsctl.trainer.step_log import StepLog
from tests.support.cases import read_cases


def make_config(**tables):
    return TrainerConfig.model_validate({"steps": 100, "log": {"every": 2}, **tables})


def take_step(state, loss, seconds=0.5, samples=16):
    state.advance(samples=samples, loss=loss, grad_norm=1.2345, step_s=seconds)
    return state


def test_line_is_megatrons_with_means_of_the_interval():
    log, state = StepLog(make_config(), world_size=4), RunState()
    assert log.add(take_step(state, 6.0, 0.4), rate=1e-4, batch=16) is None
    assert log.add(take_step(state, 4.0, 0.6), rate=1e-4, batch=16).line() == (
        " iteration        2/     100 | consumed samples:           32 | consumed tokens:         4096 | "
        "elapsed time per iteration (s): 0.500 | learning rate: 1.000E-04 | global batch size:    16 | "
        "lm loss: 5.000000E+00 | grad norm: 1.234 | num zeros: 0.0 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 | samples per second: 32.000 | TFLOPs: 0.01 | tokens/s/GPU: 1024.0 |"
    )


def test_growing_batch_is_counted_exactly():
    log, state = StepLog(make_config(), world_size=1), RunState()
    log.add(take_step(state, 6.0, samples=8), rate=1e-4, batch=8)
    interval = log.add(take_step(state, 4.0, samples=16), rate=1e-4, batch=16)
    assert (interval.samples_per_s, interval.batch, interval.consumed_samples) == (24.0, 16, 24)


def test_tokens_of_shorter_samples_are_not_counted_twice():
    """16 samples of 64 tokens, then 16 of 128."""
    log, state = StepLog(make_config(), world_size=1), RunState(step=1, consumed_samples=16, earlier_tokens=-16 * 64)
    assert log.add(take_step(state, 4.0), rate=1e-4, batch=16).consumed_tokens == 16 * 64 + 16 * 128


def test_nan_loss_is_counted():
    log, state = StepLog(make_config(), world_size=1), RunState(step=98)
    log.add(take_step(state, 2.0), rate=1e-4, batch=16)
    interval = log.add(take_step(state, math.nan), rate=1e-4, batch=16)
    assert "lm loss: NAN |" in interval.line()
    assert "number of nan iterations:   1 |" in interval.line()


BLOOM = {"layers": 70, "hidden": 14336, "heads": 112, "sequence": 2048, "vocabulary": 250880}


def test_operations_match_the_report_for_bloom():
    """384 GPUs took 102.03 s for 2048 samples, logged as 153.68 TFLOPs (prequel, tables of February)."""
    log = StepLog(make_config(model=BLOOM, recompute=True), world_size=384, device="NVIDIA A100-SXM4-80GB")
    state = RunState(step=99)
    interval = log.add(take_step(state, 2.0, 102.03, samples=2048), rate=6e-5, batch=2048)
    assert interval.tflops == pytest.approx(153.68, rel=0.005)
    assert interval.model_tflops == pytest.approx(interval.tflops * 3 / 4, rel=0.01)
    assert interval.mfu == pytest.approx(interval.model_tflops / 312)
    assert interval.line().endswith(f" | model TFLOPs: {interval.model_tflops:.2f} | MFU: {interval.mfu:.1%} |")


@pytest.mark.parametrize(*read_cases(__file__, "peak_is_known_by_the_full_device_name"))
def test_peak_is_known_by_the_full_device_name(device, peak):
    assert peak_tflops(device) == peak


def log_step(step):
    log = StepLog(make_config(log={"every": 1, "peak_tflops": 1.0}), world_size=1)
    state = RunState(step=step - 1, consumed_samples=16 * (step - 1))
    return log.add(take_step(state, 2.5), rate=1e-4, batch=16), state


def test_interval_is_one_json_line(tmp_path):
    metrics = Metrics(LogConfig(), {Env.RUN_DIR: str(tmp_path), Env.ATTEMPT: "7_1.0"}, step=0, writes=True)
    for step in (1, 2):
        metrics.interval(*log_step(step))
    metrics.evaluation(math.inf, batches=3, state=RunState(step=2))
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["attempt"], line["step"], line.get("loss")) for line in lines] == [
        ("7_1.0", 1, 2.5),
        ("7_1.0", 2, 2.5),
        ("7_1.0", 2, None),
    ]
    assert {"mfu", "tflops", "tokens_per_s", "rate", "batch", "grad_norm"} < lines[0].keys()
    assert (lines[2]["held_out_loss"], lines[2]["held_out_batches"]) == (None, 3)  # JSON knows no infinity


def test_other_ranks_write_no_metrics(tmp_path):
    Metrics(LogConfig(), {Env.RUN_DIR: str(tmp_path)}, step=0, writes=False).interval(*log_step(1))
    Metrics(LogConfig(), {}, step=0, writes=True).interval(*log_step(1))
    assert list(tmp_path.iterdir()) == []


def test_unwritable_metrics_are_noted_once(tmp_path):
    (tmp_path / "file").touch()
    metrics = Metrics(LogConfig(directory=str(tmp_path / "file" / "x")), {}, step=0, writes=True)
    interval, state = log_step(1)
    metrics.interval(interval, state)
    metrics.interval(interval, state)
    (note,) = state.notes
    assert note == f"metrics {tmp_path}/file/x/metrics.jsonl cannot be written: Not a directory"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # this test causes the exception
def test_full_disk_stops_only_tensorboard(tmp_path, monkeypatch):
    """A thread writes the events to a disk that is full after the first event."""
    disk, before = tmp_path / "disk", set(threading.enumerate())
    disk.symlink_to(tmp_path / "room")
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    real = writer.tf.io.gfile.GFile
    monkeypatch.setattr(writer.tf.io.gfile, "GFile", lambda _, mode: real(str(disk), mode))
    metrics = Metrics(LogConfig(directory=str(tmp_path), tensorboard=True), {}, step=0, writes=True)
    interval, state = log_step(1)
    metrics.interval(interval, state)
    (tmp_path / "full").symlink_to("/dev/full")
    (tmp_path / "full").replace(disk)
    end, lines = time.monotonic() + 200, 1
    while not state.notes and time.monotonic() < end:
        metrics.interval(interval, state)
        lines += 1
    metrics.close()
    for thread in set(threading.enumerate()) - before:  # so that the exception is raised before the test ends
        thread.join(250)
    assert state.notes == ["TensorBoard's events cannot be written: No space left on device"]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == lines


def test_invalid_metrics_directory_stops_nothing(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    metrics = Metrics(LogConfig(directory=str(tmp_path / "file"), tensorboard=True), {}, step=0, writes=True)
    interval, state = log_step(1)
    metrics.interval(interval, state)
    metrics.interval(interval, state)
    metrics.close()
    assert sorted(state.notes) == [
        f"TensorBoard's events cannot be written below {tmp_path}/file: Not a directory",
        f"metrics {tmp_path}/file/metrics.jsonl cannot be written: File exists",
    ]


def test_new_attempt_hides_repeated_steps(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log_config = LogConfig(directory=str(tmp_path), tensorboard=True)
    for attempt_begins, steps in ((0, (1, 2, 3)), (1, (2, 3, 4))):
        metrics = Metrics(log_config, {}, step=attempt_begins, writes=True)
        for step in steps:
            metrics.interval(*log_step(step))
        metrics.close()
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    losses = events.Scalars("lm-loss-training/lm loss")
    assert [(event.step, event.value) for event in losses] == [(1, 2.5), (2, 2.5), (3, 2.5), (4, 2.5)]
    assert "learning-rate/learning-rate" in events.Tags()["scalars"]


def test_tensorboard_without_its_library_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(Refused, match="needs the tensorboard library"):
        Metrics(LogConfig(directory=str(tmp_path), tensorboard=True), {}, step=0, writes=True)


def test_wandb_without_its_library_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(Refused, match=r"log\.wandb = true needs the wandb library"):
        Metrics(LogConfig(directory=str(tmp_path), wandb=True), {}, step=0, writes=True, tracks=True)


def test_tracker_that_fails_is_noted(tmp_path, monkeypatch):
    class Tracker:
        def init(self, **_):
            raise RuntimeError("no network")

    monkeypatch.setitem(sys.modules, "wandb", Tracker())
    metrics = Metrics(LogConfig(directory=str(tmp_path), wandb=True), {}, step=0, writes=True, tracks=True)
    state = RunState(step=1)
    metrics.evaluation(2.5, batches=1, state=state, name="code")
    assert state.notes == ["Weights & Biases cannot be used: no network"]
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["evaluation_loss"] == 2.5
