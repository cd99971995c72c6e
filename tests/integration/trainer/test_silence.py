"""The trainer's note about a cron that no longer ticks."""

import time
from pathlib import Path

import pytest

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.contract import Env, Phase
from opsctl.trainer.heartbeats import Pulse, warn_of_silent_watcher
from opsctl.trainer.rank_process import RankProcess
from opsctl.trainer.run_state import RunState


def test_silent_cron_is_noted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tick, state = tmp_path / "last-tick", RunState(save_s=1.0)
    warn_of_silent_watcher(tick, state)
    tick.write_text(f"{time.time() - 3600:.0f}\n")
    warn_of_silent_watcher(tick, state)
    assert state.notes == []
    tick.write_text("4000\n")
    for _ in range(2):
        warn_of_silent_watcher(tick, state)
    (text,) = capsys.readouterr().out.splitlines()
    assert text == f"the watchdogs do not run: cron last ticked at {time.ctime(4000)} ({tick})"
    assert state.notes == [text]


def test_only_rank_0_checks_the_last_tick(tmp_path: Path) -> None:
    tick = tmp_path / "last-tick"
    tick.write_text("4000\n")
    note_counts = []
    for rank in range(2):
        process, state = RankProcess(rank=rank, world_size=2, local_rank=rank, node="n1"), RunState(save_s=1.0)
        config = TrainerConfig.model_validate({"steps": 9})
        Pulse({Env.LAST_TICK: str(tick)}, process, config).write_heartbeat(Phase.TRAIN, state)
        note_counts.append(len(state.notes))
    assert note_counts == [1, 0]
