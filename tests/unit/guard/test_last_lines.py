"""The last lines of real trainers, from the corpus: which say that the training is over."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from opsctl.guard.dossier import gather_evidence
from opsctl.guard.end_record import Outcome
from opsctl.guard.finalize import finalize
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.settings.loader import OnExit0
from opsctl.telemetry.progress.last_lines import LastLines, find_usage, parse_last_lines, read_last_lines
from tests.support.cases import read_cases
from tests.support.finalized_trains import QueuedTrain

CORPUS = Path(__file__).parents[2] / "corpus" / "progress"
RECORDS: list[Any] = [
    pytest.param(json.loads(line), id=f"{path.stem}-{number}")
    for path in sorted(CORPUS.glob("*.jsonl"))
    for number, line in enumerate(path.read_text().splitlines())
]


@pytest.mark.parametrize("record", RECORDS)
def test_lines_that_end_a_training_are_known(record: dict[str, Any]) -> None:
    stated = {entry["line"]: entry for entry in record["expect"]}
    for number, line in enumerate(record["lines"]):
        entry = stated.get(number, {})
        found = parse_last_lines(line)
        assert bool(found.finished) == bool(entry.get("finished")), line
        assert not (found.unfinished and entry.get("finished")), line
        if "exiting" in entry or "signalled" in entry:
            assert found.unfinished, line


def test_only_lines_of_the_attempt_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[node1:0]: Training completed\n")
    begin = log.stat().st_size
    assert read_last_lines(log, 0).finished == "[node1:0]: Training completed"
    assert read_last_lines(log, begin) == LastLines()
    assert read_last_lines(tmp_path / "missing", 0) == LastLines()


@pytest.mark.parametrize(*read_cases(__file__, "command_that_limits_its_time_is_known"))
def test_command_that_limits_its_time_is_known(train: QueuedTrain, command: str, limits: bool) -> None:
    train.run.body.write_text(f"srun rank -- {command}\n")
    evidence = gather_evidence(train.run, train.start_attempt(), None)
    assert evidence.limits_itself is limits


@pytest.mark.parametrize(*read_cases(__file__, "file_that_limits_the_time_is_known"))
def test_file_that_limits_the_time_is_known(train: QueuedTrain, name: str, text: str, limits: bool) -> None:
    (train.run.path / name).write_text(text)
    train.run.body.write_text(f"srun rank -- start {name}\n")
    assert gather_evidence(train.run, train.start_attempt(), None).limits_itself is limits


@pytest.mark.parametrize(*read_cases(__file__, "last_step_of_the_command_is_known"))
def test_last_step_of_the_command_is_known(train: QueuedTrain, options: str, step: int, is_last: bool) -> None:
    train.run.body.write_text(f"srun rank -- python train.py {options}\n")
    attempt = train.start_attempt()
    lines = [f"[node001:0]: step {number} loss=2.5\n" for number in range(step - 50, step + 1, 10)]
    train.run.main_log.write_text("".join(lines))
    evidence = gather_evidence(train.run, attempt, None)
    assert (evidence.is_last_step, evidence.has_steps_left) == (is_last, False)


def test_train_that_finishes_near_the_limit_is_finished(train: QueuedTrain) -> None:
    train.run.body.write_text("srun rank -- python train.py --steps 600\n")
    attempt = train.start_attempt()
    train.run.main_log.write_text("[node001:0]: step 599 loss=2.5\n[node001:0]: step 600 loss=2.5\n")
    assert request_stop(train.run, attempt, StopKind.TIME_LIMIT, "near")
    train.end_body(attempt, 0)
    assert finalize(train.arrays, train.rules, attempt).outcome is Outcome.FINISHED


@pytest.mark.parametrize(("minutes", "is_near"), [(4, False), (6, True)])
def test_exit_after_most_of_the_time_is_known(train: QueuedTrain, minutes: int, is_near: bool) -> None:
    attempt = train.start_attempt()
    attempt.deadline.write_text(f"{train.clock.now().timestamp() + 600}\n")
    train.end_body(attempt, 0, after=60 * minutes)
    assert gather_evidence(train.run, attempt, None).is_near_limit is is_near


@pytest.mark.parametrize(("limit_s", "left_s", "is_at_limit"), [(60, 40, False), (60, 3, True), (3600, 40, True)])
def test_short_job_is_not_always_at_its_limit(train: QueuedTrain, limit_s: int, left_s: int, is_at_limit: bool) -> None:
    attempt = train.start_attempt()
    begin_s = train.clock.now().timestamp()
    attempt.deadline.write_text(f"{begin_s + limit_s}\n")
    train.end_body(attempt, 143, after=limit_s - left_s)
    evidence = gather_evidence(train.run, attempt, None)
    assert evidence.at_its_limit is is_at_limit


@pytest.mark.parametrize(*read_cases(__file__, "help_text_is_known"))
def test_help_text_is_known(tmp_path: Path, text: str, usage: str) -> None:
    (tmp_path / "log").write_text(f"before\n{text}")
    assert find_usage(tmp_path / "log", len("before\n")) == usage


@pytest.mark.parametrize(*read_cases(__file__, "program_without_any_sign_of_training_holds_the_train", outcome=Outcome))
def test_program_without_any_sign_of_training_holds_the_train(train: QueuedTrain, log: str, outcome: Outcome) -> None:
    attempt = train.start_attempt()
    train.run.main_log.write_text(log)
    train.end_body(attempt, 0, after=2)
    ended = finalize(train.arrays, train.rules, attempt)
    assert ended.outcome is outcome
    assert [row.is_held for row in train.queue.waiting] == [True] * (outcome is Outcome.IDLE)


@pytest.mark.parametrize(
    ("minutes", "on_exit_0", "outcome"),
    [(6, None, Outcome.DEADLINE), (1, None, Outcome.IDLE), (1, "finish", Outcome.FINISHED)],
)
def test_exit_after_most_of_the_time_or_by_a_setting_needs_no_sign(
    train: QueuedTrain, minutes: int, on_exit_0: OnExit0 | None, outcome: Outcome
) -> None:
    attempt = train.start_attempt()
    attempt.deadline.write_text(f"{train.clock.now().timestamp() + 600}\n")
    train.end_body(attempt, 0, after=60 * minutes)
    rules = train.rules.model_copy(update={"on_exit_0": on_exit_0})
    assert finalize(train.arrays, rules, attempt).outcome is outcome


STEP = "slurmstepd-node001: error: *** STEP 4.0 ON node001 CANCELLED AT 2026-11-23T00:10:19 ***\n"
RANK = "srun: error: node001: task 0: Exited with exit code 1\n"


@pytest.mark.parametrize(*read_cases(__file__, "ranks_that_slurm_ended_have_not_crashed", outcome=Outcome))
def test_ranks_that_slurm_ended_have_not_crashed(
    train: QueuedTrain, log: str, exits_after_s: int, outcome: Outcome
) -> None:
    attempt = train.start_attempt()
    bar = " 40%|####      | 4/10\r" * 1000
    log = log.replace("BAR\n", bar).replace("STEP\n", STEP).replace("RANK\n", RANK)
    train.run.main_log.write_text(f"[node001:0]: step 5 | loss: 2.0\n{log}")
    logs = train.run.attempt_logs(attempt.name)
    logs.mkdir(parents=True, exist_ok=True)
    for name, at in (("signalled", 100), ("first-exit", 100 + exits_after_s)):
        (logs / name).write_text("15\n")
        os.utime(logs / name, (at, at))
    train.end_body(attempt, 1)
    ended = finalize(train.arrays, train.rules, attempt)
    assert ended.outcome is outcome
    assert len(ended.why) < 200


@pytest.mark.parametrize(("is_signalled", "outcome"), [(True, Outcome.STOPPED), (False, Outcome.FINISHED)])
def test_helper_step_that_the_body_ends_is_no_preemption(
    train: QueuedTrain, is_signalled: bool, outcome: Outcome
) -> None:
    attempt = train.start_attempt()
    train.run.main_log.write_text(f"[node001:0]: step 5 | loss: 2.0\n[node001:0]: Training completed\n{STEP}")
    logs = train.run.attempt_logs(attempt.name)
    logs.mkdir(parents=True, exist_ok=True)
    if is_signalled:
        (logs / "signalled").write_text("15\n")
    train.end_body(attempt, 0)
    assert finalize(train.arrays, train.rules, attempt).outcome is outcome


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
KeyError: 'lr'
"""


@pytest.mark.parametrize(*read_cases(__file__, "failure_behind_the_last_step_is_known"))
def test_failure_behind_the_last_step_is_known(text: str, failed: str) -> None:
    found = parse_last_lines(text.replace("TRACEBACK\n", TRACEBACK).replace("LINES\n", "a line\n" * 300)).failed
    assert failed in found if failed else not found


@pytest.mark.parametrize(*read_cases(__file__, "epochs_that_are_left_are_known"))
def test_epochs_that_are_left_are_known(text: str, left: str) -> None:
    assert parse_last_lines(text).epochs_left == left


@pytest.mark.parametrize(*read_cases(__file__, "every_series_of_steps_is_at_its_end"))
def test_every_series_of_steps_is_at_its_end(train: QueuedTrain, text: str, is_last: bool, has_left: bool) -> None:
    attempt = train.start_attempt()
    evaluation = "".join(f"step {step}/60 loss: 3.0\n" for step in range(1, 61))
    train.run.main_log.write_text(text.replace("EVALUATION\n", evaluation))
    evidence = gather_evidence(train.run, attempt, None)
    assert (evidence.is_last_step, evidence.has_steps_left) == (is_last, has_left)


@pytest.mark.parametrize(("newest", "is_saved"), [("step-1000", True), ("step-999", True), ("step-900", False)])
def test_checkpoint_of_the_last_step_is_known(train: QueuedTrain, newest: str, is_saved: bool) -> None:
    attempt = train.start_attempt()
    (train.run.checkpoints / newest).mkdir()
    (train.run.checkpoints / newest / "weights").write_text("1")
    train.run.main_log.write_text("step 1000/1000 loss: 2.0\n")
    assert gather_evidence(train.run, attempt, None).is_end_saved is is_saved


@pytest.mark.parametrize(*read_cases(__file__, "last_step_of_an_epoch_ends_no_train"))
def test_last_step_of_an_epoch_ends_no_train(train: QueuedTrain, text: str) -> None:
    attempt = train.start_attempt()
    (train.run.checkpoints / "step-500").mkdir()
    (train.run.checkpoints / "step-500" / "weights").write_text("1")
    train.run.main_log.write_text(f"{text}{TRACEBACK}")
    train.end_body(attempt, 1)
    assert finalize(train.arrays, train.rules, attempt).outcome is Outcome.CRASHED
