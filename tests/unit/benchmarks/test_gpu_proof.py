"""The table of `make gpu`, without its measurements."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # last, because benchmarks has a trainer.py too

import gpu_proof
from gpu_proof import Failed, NotMeasured, Row, collect, read_titan_mfu

FAKE = Path(__file__).with_name("fake_gpu.sh")
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


def test_way_that_was_not_measured_leaves_the_others():
    rows = rows_of(seconds={"written": 0.5, "compiled": 0.4}, unmeasured={"plain": "out of memory"})
    assert rows["1.3B, plain: MFU"].figure == "not measured: out of memory"
    assert rows["1.3B, compiled: MFU"].is_met


def test_blocks_that_do_not_compile_are_a_row():
    rows = rows_of(seconds={"written": 0.5, "plain": 0.4}, uncompiled_because="blocks are not compiled: no triton")
    assert rows["1.3B: torch.compile"].figure == "blocks are not compiled: no triton"
    assert rows["1.3B, written: MFU"].is_met is False


def test_unknown_gpu_is_held_against_its_matmul():
    assert rows_of(peak_tflops=None)["1.3B, plain: MFU"].figure == "73.3% of its own matmul"


@pytest.fixture
def proofs(monkeypatch):
    """A function that replaces the proofs."""

    def replace(**functions):
        monkeypatch.setattr(gpu_proof, "PROOFS", functions)

    return replace


HANG = RuntimeError("never raised")


def raising(error):
    def fail(_):
        yield Row(name="before", figure="1")
        if error is HANG:
            time.sleep(60)
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "figure", "outcome"),
    [
        (Failed("no kernel image"), "failed: no kernel image", "MISSED"),
        (FileNotFoundError(2, "No such file", "stop.json"), "failed: FileNotFoundError: [Errno 2] No such", "MISSED"),
        (NotMeasured("CUDA out of memory"), "not measured: CUDA out of memory", ""),
        (HANG, "not measured: not done after 1 s", ""),
    ],
)
def test_failing_proof_is_a_row_among_the_others(proofs, error, figure, outcome):
    proofs(first=raising(error), second=lambda _: iter([Row(name="after", figure="2")]))
    before, failed, after = collect(Place(), ["first", "second"], limit_s=0.6)
    assert (before.name, failed.name, after.name) == ("before", "first", "after")
    assert failed.figure.startswith(figure)
    assert failed.outcome == outcome


FAILURES = {
    "out of memory": "not measured: RuntimeError: CUDA",
    "killed": "not measured: killed by the system",
    "crash": "failed: ",
    "error": "failed: ValueError: bad shape",
    "missing file": "failed: FileNotFoundError",
    "hang": "not measured: not done after ",
}


@pytest.fixture
def prove(tmp_path, monkeypatch, capsys):
    """A function that runs the whole program on a GPU that is not there, and returns its rows."""

    def run(proof="", failure="", only=()):
        names = ["--only", *only] if only else []
        monkeypatch.setenv("PROOF", proof)
        monkeypatch.setenv("FAILURE", failure)
        argv = ["--json", "--output", str(tmp_path / "rows.jsonl"), "--torchtitan", str(FAKE), *names]
        monkeypatch.setattr(sys, "argv", ["gpu_proof.py", *argv])
        code, rows = gpu_proof.main(), json.loads(capsys.readouterr().out)
        assert code == any(row["is_proof"] and row["is_met"] is False for row in rows)
        assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == rows
        return rows

    monkeypatch.setattr(gpu_proof, "write_corpus", lambda directory: (directory / "corpus.idx").touch())
    monkeypatch.setattr(sys, "executable", str(FAKE))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("failure", FAILURES)
def test_failing_proof_costs_its_own_rows_alone(prove, failure):
    whole = prove()
    assert all(row["is_met"] is not False for row in whole)
    names = {
        proof: {proof, *(row["name"] for row in prove(only=[proof])[:-1])} for proof in list(gpu_proof.PROOFS)[:-1]
    }
    for proof, own in (names | {"torchtitan": {"torchtitan", "torchtitan: MFU"}}).items():
        rows = prove(proof, failure)
        assert [row for row in rows if row["name"] not in own] == [row for row in whole if row["name"] not in own]
        (failed,) = (row for row in rows if row["name"] in own)
        is_lack = FAILURES[failure].startswith("not measured")
        assert failed["is_met"] is (None if is_lack or proof == "torchtitan" else False)
        is_judged_by_what_is_left = proof.startswith("guards") and not is_lack
        assert failed["figure"].startswith(FAILURES[failure]) or is_judged_by_what_is_left or proof == "torchtitan"


def test_rows_are_written_as_they_come(tmp_path, capsys):
    table = gpu_proof.Table(tmp_path / "build" / "rows.jsonl", as_json=True)
    for number in (1, 2):
        table.add(Row(name="a", figure=str(number), is_met=False, is_proof=number == 2))
        rows = [json.loads(line) for line in (tmp_path / "build" / "rows.jsonl").read_text().splitlines()]
        assert [row["figure"] for row in rows] == ["1", "2"][:number]
        assert table.is_refuted is (number == 2)
    table.end()
    assert json.loads(capsys.readouterr().out) == rows


def test_memory_is_judged():
    assert rows_of()["1.3B: memory reserved / estimate of --dry-run"].is_met
    assert rows_of(reserved=46 << 30)["1.3B: memory reserved / estimate of --dry-run"].is_met is False


def test_proof_without_time_refutes_nothing(tmp_path):
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
        timeout=250,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("nothing is proved here: ")
