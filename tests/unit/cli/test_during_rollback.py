"""While a rollback runs, or waits to be finished, no command starts a task: it would begin at a wrong checkpoint."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.app import App, build
from opsctl.base.errors import InputError, RunDirError
from opsctl.cli import cli
from opsctl.dash.steering import queue_tasks
from opsctl.launch.rollback_state import RollbackPhase, RollbackRecord, records_dir, write_record
from opsctl.monitor.reconcile import carry_out
from opsctl.preflight.problem import Problem
from opsctl.state.events import RequestRefused
from opsctl.state.lease import lease
from opsctl.state.requests import RequestKind, read_requests, request
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch, arm, read
from opsctl.train import Train

TRAIN = "name = 't'\ncommand = ['true']\n[slurm]\nnodes = 1\ntime_limit = '5'\n"
STARTS = [
    ["release", "t"],
    ["release", "t", "--dry-run"],
    ["launch", "t.toml"],
    ["launch", "t.toml", "--after", "7", "--dry-run"],
    ["kill-switch", "disarm", "t", "--pause"],
]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    site = tmp_path / "site.toml"
    site.write_text(f"root = '{tmp_path}/trains'\n")
    monkeypatch.setenv("OPSCTL_SITE", str(site))
    monkeypatch.chdir(tmp_path)
    Path("t.toml").write_text(TRAIN)
    return build(site)


@pytest.fixture
def run(app: App) -> RunDir:
    """A train whose rollback has moved the checkpoints, and was interrupted then."""
    run = RunDir(app.root / "t")
    run.create()
    run.config.write_text(TRAIN)
    record = RollbackRecord(number=1, phase=RollbackPhase.MOVED, step=10, checkpoint="/c/10", directories=())
    write_record(run, record)
    return run


@contextlib.contextmanager
def refused(why: str) -> Iterator[None]:
    with pytest.raises(InputError, match=f"t: a rollback {why}"):
        yield


def opsctl(words: list[str]) -> None:
    cli.main(words, standalone_mode=False)


@pytest.mark.parametrize("words", STARTS)
def test_no_command_starts_a_task(app: App, run: RunDir, words: list[str]) -> None:
    arm(run, Switch.PAUSE, why="rollback")
    with refused("was interrupted"):
        opsctl(words)
    with lease(records_dir(run), app.clock), refused("is running"):
        opsctl(words)
    assert read(run, Switch.PAUSE)


@pytest.mark.parametrize("words", STARTS)
def test_unreadable_record_starts_no_task(app: App, run: RunDir, words: list[str]) -> None:
    arm(run, Switch.PAUSE, why="rollback")
    (records_dir(run) / "0001.json").write_text("{")
    with pytest.raises(InputError, match="t: the record of the newest rollback cannot be read"):
        opsctl(words)
    assert read(run, Switch.PAUSE)


def test_python_and_the_page_start_no_task(app: App, run: RunDir) -> None:
    train = Train.find("t")
    for call in (train.release, train.launch, lambda: queue_tasks(app, run, 1, dry_run=False, show=print)):
        with refused("was interrupted"):
            call()


def test_request_of_a_member_starts_no_task(app: App, run: RunDir) -> None:
    request(run, RequestKind.RELEASE)
    done = carry_out(app.arrays(run), read_requests(run)[0][0], nodes=1)
    assert "refused: t: a rollback was interrupted" in done[0]
    assert isinstance(app.journal(run).events()[-1], RequestRefused)


def test_hold_waits_for_the_end_of_a_rollback(app: App, run: RunDir) -> None:
    with lease(records_dir(run), app.clock):
        for call in (lambda: opsctl(["hold", "t"]), Train.find("t").hold):
            with refused("is running; it holds the queued tasks, and releases them at its end"):
                call()


@pytest.mark.parametrize("during", ["list_problems", "reconcile_own_train"])
def test_edit_keeps_the_settings_of_a_rollback(
    app: App, run: RunDir, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    for path in (run.body, run.wrapper):
        path.touch()
    after = TRAIN + "[rollback]\nstep = 10\n"

    def roll_back(*_: object, **__: object) -> list[Problem]:
        run.config.write_text(after)
        return []

    monkeypatch.setattr("opsctl.cli.edit.reconcile_own_train", lambda *_, **_options: None)
    monkeypatch.setattr(f"opsctl.cli.edit.{during}", roll_back)
    Path("t.toml").write_text(TRAIN + "[guard]\nshort_attempts = 4\n")
    with pytest.raises(RunDirError, match="changed the files meanwhile"):
        opsctl(["edit", "t", "t.toml"])
    assert run.config.read_text() == after
