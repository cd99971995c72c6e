"""The actions of `opsctl dash` on a real Slurm, as the owner and as other users, and the view from real commands."""

from collections.abc import Iterator

import pytest

from opsctl.dash.collect_site import collect_site
from opsctl.dash.steering import PageInstruction, carry_out
from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import Held
from opsctl.state.journal import Journal
from tests.support.trains import Trains, as_user, find_group, trains_on

NOBODY, USERS, NOGROUP = 65534, 100, 65534


@pytest.fixture
def shared(slurm: Sandbox) -> Iterator[Trains]:
    """A queued train whose switches belong to a group, with all modules imported that a team mate needs."""
    with trains_on(slurm, group=find_group()) as trains:
        trains.opsctl("launch", trains.toml(extra=("--begin=now+1hour",)))
        for verb in ("hold", "release", "save"):
            press(trains, verb, confirmed=False)
        (trains.run().switches / "save").unlink()
        yield trains


def press(trains: Trains, verb: str, *, confirmed: bool = True) -> str:
    """Do what a button does, and return the answer that the page shows."""
    instruction = PageInstruction(verb=verb, train="t", reason="noon", person="ana", confirmed=confirmed)
    return str(carry_out(trains.app, instruction)["text"])


def test_owner_holds_and_releases(shared: Trains) -> None:
    array = shared.rows()[0].array
    assert press(shared, "hold").startswith(f"held array {array}; ")
    assert [card.headline.word for card in collect_site(shared.app).trains] == ["HELD"]
    assert press(shared, "release") == f"released array {array}"
    card = collect_site(shared.app).trains[0]
    assert card.headline.word == "QUEUED"
    held = [event for event in Journal(shared.run(), shared.app.clock).events() if isinstance(event, Held)]
    assert str(held[0].reason).startswith("noon, ana (")


@pytest.mark.root
def test_team_mate_holds_by_the_pause_switch(shared: Trains) -> None:
    text = as_user(NOBODY, USERS, lambda: press(shared, "hold"))
    assert text.startswith("the job is not yours to hold, so the pause switch is armed instead")
    assert (shared.run().switches / "pause").exists()


@pytest.mark.root
@pytest.mark.parametrize("verb", ["hold", "save"])
def test_stranger_is_refused(shared: Trains, verb: str) -> None:
    text = as_user(NOBODY, NOGROUP, lambda: press(shared, verb))
    assert text.startswith(f"RunDirError: {shared.run().switches}")
    assert list(shared.run().switches.iterdir()) == []


def test_view_shows_the_nodes_of_the_sandbox(shared: Trains) -> None:
    view = collect_site(shared.app)
    assert view.nodes is not None
    assert len(view.nodes) == 4
    assert view.slurm == ""
