"""Long logs are set aside in parts and packed, and everything reads through the parts."""

import json
import os
from pathlib import Path

import pytest

from opsctl.dash.log_search import find_first_error, read_attempt_end
from opsctl.diagnosis.diagnose_attempt import diagnose_attempt
from opsctl.guard.cause import load_attempt_logs
from opsctl.monitor.keep_files import DAY_S, READ_S, carry_out, plan, plan_growing, plan_main_log
from opsctl.settings.loader import KeepTable
from opsctl.state.files import list_parts
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.logs.train_logs import TrainLog
from opsctl.watchdogs.new_lines import new_iterations
from tests.support.finalized_trains import QueuedTrain, make_train
from tests.support.made_reports import Train, make_rough_train

KEEP = KeepTable(attempts=1, log_size=2000)
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
NAMES = ["7_1.0", "7_2.0", "7_3.0"]


def make(place: Path) -> Train:
    train = make_rough_train(place)
    train.start(6000, NAMES[2])
    train.steps(6100, 140, 150)
    train.write_log(f"[node002:7]: {ECC}")
    return train


def set_all_aside(run: RunDir) -> None:
    """Change the log of a train as if every job had set its log aside: the text before the next attempt."""
    log, data = run.main_log, run.main_log.read_bytes()
    records = [json.loads(run.attempt(name).start.read_text()) for name in NAMES]
    ends = [*(record["main_log"] for record in records[1:]), len(data)]
    for part, (name, record, end) in enumerate(zip(NAMES, records, ends, strict=True)):
        begin = ends[part - 1] if part else 0
        log.write_bytes(data[begin:end])
        if part < 2:
            carry_out(plan_main_log(run, KEEP), run.logs, Train(run.path.parent / "clock").clock)
        fields = record | {"log_part": part, "main_log": record["main_log"] - begin}
        run.attempt(name).start.write_text(json.dumps(fields))
    assert [path.name for path in list_parts(log)] == ["main_log.000000.txt", "main_log.000001.txt"]


def read_all(train: Train) -> list[object]:
    """Return what readers of the log show, without paths and offsets."""
    run, log = train.run, TrainLog(train.run)
    diagnoses = [diagnose_attempt(run, load_attempt_logs(run, name, NAMES, None)) for name in NAMES]
    ends = [read_attempt_end(run, train.journal, name) for name in NAMES[:2]]
    return [
        [line for lines in (None, 5, 30) for line in log.tail(lines)],
        [(diagnosis.cause, diagnosis.rank, diagnosis.evidence, diagnosis.iteration) for diagnosis in diagnoses],
        [[line.text for line in excerpt.lines] for excerpt in (*ends, find_first_error(run, train.journal))],
        {bucket: round(seconds, 6) for bucket, seconds in train.report(9999).buckets.items()},
        train.report(9999).notes,
    ]


def test_all_readers_read_through_the_parts(tmp_path: Path) -> None:
    train = make(tmp_path)
    before = read_all(train)
    assert before[1][2][:2] == ("gpu-ecc", 7)  # type: ignore[index]  # the diagnosis of the last attempt
    set_all_aside(train.run)
    assert read_all(train) == before
    train.run.main_log.rename(tmp_path / "away")  # as before the next job has written a line
    assert train.run.main_log.name == "main_log.000001.txt"


@pytest.fixture
def old(tmp_path: Path) -> QueuedTrain:
    """A train with two parts of a month ago."""
    train = make_train(tmp_path)
    for number in range(3):
        train.run.logs.joinpath("main_log.txt").write_text(f"{number}\n" * 3000)
        if number < 2:
            carry_out(plan_main_log(train.run, KEEP), train.run.logs, train.clock)
    for path in train.run.logs.iterdir():
        os.utime(path, (train.clock.now().timestamp(),) * 2)
    train.clock.sleep(30 * DAY_S)
    return train


def test_old_parts_are_packed_but_the_newest(old: QueuedTrain) -> None:
    before = list(TrainLog(old.run).tail(None))
    for verb in ("pack", "remove"):
        steps = plan(old.run, KEEP, old.clock.now())
        assert [(step.verb, step.path.name) for step in steps] == [(verb, "main_log.000000.txt")]
        carry_out(steps, old.run.logs, old.clock)
        assert list(TrainLog(old.run).tail(None)) == before
        old.clock.sleep(2 * READ_S)
    assert sorted(path.name for path in old.run.logs.iterdir()) == [
        "main_log.000000.txt.tar.gz",
        "main_log.000001.txt",
        "main_log.txt",
    ]
    assert old.run.log_part(0).read_text() == "0\n" * 3000
    [step] = plan(old.run, KeepTable(delete_days=7), old.clock.now())
    carry_out([step], old.run.logs, old.clock)
    assert not old.run.log_part(0).exists(), "the log of an attempt whose part is deleted is not that of another"


def test_short_log_and_log_of_a_running_job_stay(old: QueuedTrain) -> None:
    assert plan_main_log(old.run, KeepTable()) == []
    assert plan(old.run, KeepTable(log_size=1024), old.clock.now())[1:] == [], "prune leaves main_log to the guard"


@pytest.mark.parametrize(("name", "pattern"), [("pulse.log", "pulse.log"), ("journal-a.b-0.jsonl", "journal-*.jsonl")])
def test_files_of_lines_begin_anew(old: QueuedTrain, name: str, pattern: str) -> None:
    path = old.run.logs / name
    part = path.with_name(f"{path.stem}.000000{path.suffix}")
    for verb, content in (("set aside", "a\n"), (None, "b\n")):
        path.write_text(content * (2000 if verb else 1))
        steps = plan_growing(old.run.logs, [pattern], KEEP, old.clock.now())
        assert [step.verb for step in steps] == ([verb] if verb else [])
        carry_out(steps, old.run.logs, old.clock)
    assert (path.read_text(), part.read_text()) == ("b\n", "a\n" * 2000)


def test_watchdogs_read_on_to_the_end_of_a_part(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.steps(0, 1, 20)
    _, place = new_iterations(train.run.main_log, None)
    train.steps(200, 21, 40)
    carry_out(plan_main_log(train.run, KEEP), train.run.logs, train.clock)
    (train.run.logs / "main_log.txt").touch()
    train.steps(400, 41, 45)
    steps, _ = new_iterations(train.run.main_log, place)
    assert [step.step for step in steps] == list(range(21, 46))
