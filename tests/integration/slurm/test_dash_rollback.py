"""Rollback and more tasks from the pages of `opsctl dash`, on a real Slurm: plan, process, interruption, result."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.base.errors import InputError
from opsctl.dash.collect_site import collect_site
from opsctl.dash.steering import PageInstruction, carry_out
from opsctl.dash.train_card import TrainCard
from opsctl.host.processes import ProcessId
from opsctl.launch.rollback_state import RollbackPhase, RollbackState, read_rollback_state
from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import Held, RolledBack
from opsctl.state.journal import Journal
from tests.support.trains import Trains, as_user, find_group, trains_on, until

TRAINER = Path(__file__).parents[2] / "support" / "tracked_trainer.py"
COMMAND = (sys.executable, "-P", str(TRAINER), "100000", "5", "0.02")
NOBODY, USERS = 65534, 100
WORDS = "[rollback]\nstep_argument = '--ckpt-step {step}'\n"


@pytest.fixture(scope="module")
def running(slurm: Sandbox) -> Iterator[Trains]:
    """One running train for all tests of this module."""
    with trains_on(slurm, group=find_group()) as trains:
        trains.opsctl("launch", trains.toml(command=COMMAND, more=WORDS, extra=()))
        yield trains
        state = read_rollback_state(trains.run(), trains.app.clock)
        if state and state.started and state.started.is_alive:
            os.kill(state.started.pid, signal.SIGKILL)


@pytest.fixture
def trains(running: Trains, slurm: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Trains:
    """The train with the checkpoints of the steps 5, 10 and 15."""
    for name, value in slurm.env().items():
        monkeypatch.setenv(name, value)
    until((running.run().checkpoints / "iter_0000015/mp_rank_00/model_optim_rng.pt").exists)
    return running


def press(trains: Trains, verb: str, number: int | None, *, confirmed: bool = True) -> dict[str, object]:
    """Do what a button does, and return what the page gets."""
    instruction = PageInstruction(verb=verb, train="t", reason="noon", person="ana", number=number, confirmed=confirmed)
    return carry_out(trains.app, instruction)


def find_card(trains: Trains) -> TrainCard:
    card = collect_site(trains.app).find("t")
    assert card
    return card


def wait_for_end(trains: Trains) -> RollbackState:
    def find_ended() -> RollbackState | None:
        state = read_rollback_state(trains.run(), trains.app.clock)
        return state if state and not state.is_running else None

    state = until(find_ended)
    assert isinstance(state, RollbackState)
    return state


def starts(trains: Trains) -> list[str]:
    path = trains.run().path / "starts"
    return path.read_text().splitlines() if path.exists() else []


def test_tasks_are_queued_after_the_last_array(trains: Trains) -> None:
    before = trains.arrays()
    (array,) = before
    plan = press(trains, "queue", 2, confirmed=False)
    assert str(plan["text"]).partition("\n")[0] == f"would queue 2 tasks of 1 node, after array {array}"
    assert trains.arrays() == before
    text = str(press(trains, "queue", 2)["text"])
    (added,) = trains.arrays() - before
    assert text == f"queued 2 tasks as array {added}, after array {array}"
    assert sum(len(row.tasks) or 1 for row in trains.rows() if row.array == added) == 2
    with pytest.raises(InputError, match="0 tasks cannot be queued"):
        press(trains, "queue", 0, confirmed=False)


@pytest.mark.root
@pytest.mark.parametrize("verb", ["rollback", "queue"])
def test_only_the_owner_gets_the_button(trains: Trains, verb: str) -> None:
    press(trains, verb, 5, confirmed=False)  # imports what another user of this machine may not read
    text = as_user(NOBODY, USERS, lambda: str(find_card(trains).verbs))
    assert text == "('hold', 'save')"
    refusal = as_user(NOBODY, USERS, lambda: str(press(trains, verb, 5)))
    assert "belongs to another user; only the owner can" in refusal


def test_process_of_the_page_is_no_zombie(trains: Trains) -> None:
    press(trains, "rollback", 7)
    state = wait_for_end(trains)
    assert state.started
    assert ProcessId.of(state.started.pid) is None
    assert not state.is_done
    assert "no checkpoint of step 7" in state.output[0]
    assert find_card(trains).headline.word == "RUNNING", "a refused rollback stops nothing"


def test_rollback_outlives_the_page(trains: Trains) -> None:
    assert find_card(trains).verbs == ("hold", "save", "queue", "rollback")
    before = starts(trains)
    plan = press(trains, "rollback", 5, confirmed=False)
    assert (plan["done"], plan["number"]) == (False, 5)
    assert "would go back to step 5\n" in str(plan["text"])
    assert "the running task is asked to save and stop" in str(plan["text"])
    assert "the rollback to step 5 has started" in str(press(trains, "rollback", 5)["text"])
    with pytest.raises(InputError, match="t: a rollback is running"):
        press(trains, "rollback", 10)
    state = read_rollback_state(trains.run(), trains.app.clock)
    assert state
    assert state.started
    assert os.getsid(state.started.pid) == state.started.pid, "Ctrl-C and the end of the page do not reach the process"
    card = find_card(trains)
    assert card.rollback
    assert (card.verbs, card.steps, card.rollback.is_running) == ((), (), True)

    ended = wait_for_end(trains)
    assert ended.is_done, ended.output
    assert any("rolled back to step 5" in line for line in ended.output)
    until(lambda: len(starts(trains)) > len(before))
    assert starts(trains)[-1] == "5 --ckpt-step 5"
    events = Journal(trains.run(), trains.app.clock).events()
    (rolled_back,) = [event for event in events if isinstance(event, RolledBack)]
    assert rolled_back.why.startswith("noon, ana (")
    holds = [str(event.reason) for event in events if isinstance(event, Held)]
    assert any(why.startswith("opsctl rollback to step 5: noon, ana (") for why in holds), holds
    page = "".join(path.read_text() for path in trains.app.site_dir.alerts.glob("journal-*.jsonl"))
    assert '"verb": "rollback"' in page
    assert '"number": 5' in page
    assert "rollback" in find_card(trains).verbs


def test_killed_rollback_is_finished_from_the_page(trains: Trains) -> None:
    before = starts(trains)
    press(trains, "rollback", 10)

    def find_begun() -> RollbackState | None:
        state = read_rollback_state(trains.run(), trains.app.clock)
        return state if state and state.record and state.record.phase is RollbackPhase.BEGUN else None

    state = until(find_begun)
    assert state.started
    os.kill(state.started.pid, signal.SIGKILL)
    assert wait_for_end(trains).is_interrupted
    card = find_card(trains)
    assert card.verbs == ("rollback",)
    assert [step.command for step in card.steps] == ["opsctl rollback t"]
    plan = press(trains, "rollback", None, confirmed=False)
    assert "goes on with the interrupted rollback to step 10" in str(plan["text"])
    assert plan["number"] == 10
    press(trains, "rollback", 10)
    output = wait_for_end(trains).output
    assert any("rolled back to step 10" in line for line in output), output
    until(lambda: len(starts(trains)) > len(before))
