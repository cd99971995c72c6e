"""The slow part of a train's page: attempts by cause, and events on the curves."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from opsctl.app import build
from opsctl.dash.train_detail import read_detail
from opsctl.guard.end_record import Outcome
from opsctl.state.events import ExclusionDecided
from opsctl.state.reasons import as_written
from tests.support.made_reports import Train


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """A train whose first attempt crashes at step 100 and whose second one goes on from step 51."""
    train = Train(tmp_path / "trains")
    train.submit(0)
    train.start(10, "7_1.0")
    train.steps(20, 1, 100)
    train.end(1100, Outcome.CRASHED, "exit code 1")
    train.note(
        1110,
        ExclusionDecided(
            attempt="7_1.0",
            nodes="node001",
            until="2026-04-01T00:00:00+00:00",
            excluded=True,
            reason=as_written("GPU fell off"),
            done=(),
        ),
    )
    train.start(1200, "7_2.0")
    train.steps(1210, 51, 80)
    return train


def detail_of(train: Train, tmp_path: Path):
    site = tmp_path / "site.toml"
    site.write_text(f'root = "{train.run.path.parent}"\ntrust_parents = true\n')
    app = build(site)
    train.clock.seconds = 1600
    object.__setattr__(app, "clock", train.clock)
    return read_detail(app, train.run)


def test_attempts_are_coloured_by_cause(train: Train, tmp_path: Path) -> None:
    detail = detail_of(train, tmp_path)
    assert [(row.name, row.group) for row in detail.attempts] == [("7_1.0", "software"), ("7_2.0", "running")]
    assert set(detail.groups) == {"software", "running"}


def test_curves_hold_restarts_and_excluded_nodes(train: Train, tmp_path: Path) -> None:
    curves = detail_of(train, tmp_path).curves
    marks = [(mark[0], mark[1]) for mark in json.loads(json.dumps(curves))["marks"]]
    assert (51, "restart") in marks
    assert [kind for _, kind in marks].count("restart") == 1
    assert "node excluded" in [kind for _, kind in marks]


def test_curves_are_in_the_order_of_steps(train: Train, tmp_path: Path) -> None:
    curves = json.loads(json.dumps(detail_of(train, tmp_path).curves))
    for name in ("loss", "pace"):
        steps = curves[name]["bins"][0]
        assert steps == sorted(set(steps))
        assert len(steps) > 10


def test_times_of_attempts_have_a_zone(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        detail = detail_of(train, tmp_path)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert detail.ticks[0].label == "12:00"
    assert {mark[3] for mark in detail.curves["marks"]} <= {"2026-03-01 12:18 UTC", "2026-03-01 12:20 UTC"}
    assert [row.began for row in detail.attempts] == [
        "2026-03-01 12:00 UTC",
        "2026-03-01 12:20 UTC",
    ]
