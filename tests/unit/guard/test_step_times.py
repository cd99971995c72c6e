"""Finalize records how fast the nodes of an attempt were, and does nothing else about it."""

from pathlib import Path

import pytest

from opsctl.guard.finalize import finalize
from opsctl.state.run_dir import Attempt
from opsctl.trainer.contract import RankStepTimes, TrainerStop, to_json
from tests.support.finalized_trains import QueuedTrain, make_node_care

SECONDS = {"node001": 1.0, "node002": 1.4, "node003": 1.0, "elsewhere": 9.0}


def write_times(attempt: Attempt) -> None:
    attempt.step_times.mkdir()
    for rank, (node, seconds) in enumerate(SECONDS.items()):
        times = RankStepTimes(node=node, rank=rank, local_rank=0, steps=99, compute_s=seconds)
        (attempt.step_times / f"{rank}.json").write_text(to_json(times))


def test_end_of_an_attempt_records_its_nodes(train: QueuedTrain) -> None:
    attempt, care = train.start_attempt(nodes="node[001-003]"), make_node_care(train)
    write_times(attempt)
    train.stop_trainer(attempt, TrainerStop.DEADLINE)
    ended = finalize(train.arrays, train.rules, attempt, care=care)
    recorded = {record.node: record.step_times["gpt/12_1.0"].ratio for record in care.history.all()}
    assert recorded == {"node001": 1.0, "node002": 1.4, "node003": 1.0}
    assert (ended.suspects, ended.done, list(care.exclusions.now())) == ((), (), [])


def test_attempt_without_step_times_records_nothing(train: QueuedTrain) -> None:
    attempt, care = train.start_attempt(nodes="node[001-003]"), make_node_care(train)
    train.stop_trainer(attempt, TrainerStop.DEADLINE)
    finalize(train.arrays, train.rules, attempt, care=care)
    assert care.history.all() == []


def test_history_that_cannot_be_written_delays_nothing(
    train: QueuedTrain, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    attempt, care = train.start_attempt(nodes="node[001-003]"), make_node_care(train)
    write_times(attempt)
    (tmp_path / ".site").write_text("in the way")
    train.stop_trainer(attempt, TrainerStop.DEADLINE)
    finalize(train.arrays, train.rules, attempt, care=care)
    assert attempt.end.exists()
    assert "could not be recorded" in caplog.text
