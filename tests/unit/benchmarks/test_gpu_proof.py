"""The table of `make gpu`, without its measurements."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # last, because benchmarks has a trainer.py too

import gpu_proof
from gpu_proof import Failed, Row, collect, read_titan_mfu

SPEED = {
    "seconds": {"written": 0.5, "compiled": 0.4, "plain": 0.39},
    "teraflop": 200.0,
    "peak_tflops": 989.4,
    "matmul_tflops": 700.0,
    "uncompiled_because": "",
    "reserved": 36 << 30,
    "estimate": 40 << 30,
}


class Place:
    tiny, device = False, "cuda"

    def __init__(self, **figures):
        self.figures = figures

    def measure(self, what, shape, **plan):
        return self.figures


def rows_of(**figures):
    rows = gpu_proof.speed_rows(Place(**SPEED | figures), "1.3B", {}, micro=4, batch=32, aim=0.5)
    return {row.name: row for row in rows}


def test_faster_way_is_held_against_the_aims():
    rows = rows_of()
    assert rows["1.3B, compiled: MFU"].figure == "50.5% of the data sheet"
    assert rows["1.3B, compiled: MFU"].is_met
    assert rows["1.3B, written: MFU"].is_met is None
    assert rows["1.3B: trainer / plain torch.compile loop"].figure == "0.975"
    assert rows["1.3B: memory reserved / estimate of --dry-run"].figure == "0.90"


def test_blocks_that_do_not_compile_are_a_row():
    rows = rows_of(seconds={"written": 0.5, "plain": 0.4}, uncompiled_because="blocks are not compiled: no triton")
    assert rows["1.3B: torch.compile"].figure == "blocks are not compiled: no triton"
    assert rows["1.3B, written: MFU"].is_met is False


def test_unknown_gpu_is_held_against_its_matmul():
    assert rows_of(peak_tflops=None)["1.3B, plain: MFU"].figure == "73.3% of its own matmul"


def test_failing_proof_is_a_row(monkeypatch):
    def fail(_):
        yield Row(name="first", figure="1")
        raise Failed("CUDA out of memory")

    monkeypatch.setitem(gpu_proof.PROOFS, "loss", fail)
    first, second = collect(Place(), ["loss"])
    assert (first.outcome, second.outcome) == ("", "MISSED")
    assert second.figure == "failed: CUDA out of memory"


def test_proof_without_time_refutes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_proof, "write_corpus", lambda _: None)
    place = gpu_proof.Place(tmp_path, tiny=True, device="cpu", budget_s=0.0)
    (row,) = collect(place, ["loss"])
    assert row.figure == "not measured: no time left of 0 s"
    assert row.is_met is None


@pytest.mark.parametrize(
    ("log", "mfu"),
    [
        ("\x1b[32mstep:  10  loss:  5.1  tps: 6,200  \x1b[36mmfu: 40.10%\x1b[39m\nstep: 20 mfu: 41.50%", 0.415),
        ("", None),
    ],
)
def test_mfu_of_torchtitan_is_read_from_its_last_step(log, mfu):
    assert read_titan_mfu(log) == mfu


def test_machine_without_a_gpu_is_told_why():
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-P", gpu_proof.__file__],
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("nothing is proved here: ")
