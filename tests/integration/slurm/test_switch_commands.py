"""Switches and requests, by the owner and by other users of this machine."""

import json
import shutil
from collections.abc import Iterator

import pytest

from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import AttemptFinalized, RequestDone, SwitchArmed, SwitchDisarmed
from tests.support.trains import Trains, as_user, trains_on, until

NOBODY, USERS, NOGROUP = 65534, 100, 65534


@pytest.fixture
def shared(slurm: Sandbox) -> Iterator[Trains]:
    """Trains whose switches belong to the group `users`, with all modules imported that a team mate needs."""
    with trains_on(slurm, group="users") as trains:
        trains.opsctl("launch", trains.toml(extra=("--begin=now+1hour",)))
        for verb in ("hold", "release", "cancel"):
            trains.opsctl(verb, "t", "--dry-run")
        trains.opsctl("kill-switch", "show", "t")
        yield trains


def test_switch_is_armed_shown_and_disarmed(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    text = trains.opsctl("kill-switch", "arm", "t", "--reason", 'bad "loss" $(id)')
    assert text.startswith("t: the kill switch is armed: cancelled the queued tasks of array ")
    (shown,) = json.loads(trains.opsctl("kill-switch", "show", "t", "--json"))
    assert (shown["switch"], shown["why"]) == ("kill", 'bad "loss" $(id)')
    assert trains.opsctl("kill-switch", "arm", "t", "--reason", "again").startswith("t: already armed: kill by ")
    assert trains.opsctl("kill-switch", "disarm", "t") == "t: the kill switch is disarmed\n"
    assert trains.opsctl("kill-switch", "disarm", "t") == "t: the kill switch was not armed\n"
    assert trains.opsctl("kill-switch", "show", "t") == "t: no switch is armed\n"
    changes = {SwitchArmed, SwitchDisarmed}
    assert [kind for kind in trains.kinds() if kind in changes] == [SwitchArmed, SwitchDisarmed]


def test_save_switch_is_armed(trains: Trains) -> None:
    trains.opsctl("launch", trains.toml())
    text = trains.opsctl("save-switch", "t")
    assert text == (
        "t: the save switch is armed: the next task saves a checkpoint at its next step and goes on,"
        " if its trainer reads the save switch; neither the command nor its scripts name TRAIN_SAVE_SWITCH, so the"
        " trainer probably does not read it\n"
    )
    assert (trains.run().switches / "save").exists()
    assert trains.opsctl("save-switch", "t", "--disarm") == "t: the save switch is disarmed\n"
    assert not (trains.run().switches / "save").exists()


@pytest.mark.parametrize("words", [("kill-switch", "arm", "t", "--reason", "x"), ("save-switch", "t")])
def test_dry_run_arms_nothing(trains: Trains, words: tuple[str, ...]) -> None:
    trains.opsctl("launch", trains.toml())
    text = trains.opsctl(*words, "--dry-run")
    assert " would be armed: " in text
    assert "watch cycle of the owner" not in text  # the train is ours: what follows is done at once
    assert list(trains.run().switches.iterdir()) == []


@pytest.mark.root
def test_team_mate_stops_a_train_by_its_kill_switch(shared: Trains) -> None:
    text = as_user(NOBODY, USERS, lambda: shared.opsctl("kill-switch", "arm", "t", "--reason", "bad loss"))
    assert text == (
        "t: the kill switch is armed: the next opsctl command or watch cycle of the owner cancels the queued tasks\n"
    )
    (shown,) = json.loads(shared.opsctl("kill-switch", "show", "t", "--json"))
    assert (shown["by"], shown["why"]) == ("nobody", "bad loss")
    # The owner can disarm the switch of a team mate, and a team mate that of the owner.
    assert shared.opsctl("kill-switch", "disarm", "t") == "t: the kill switch is disarmed\n"
    shared.opsctl("kill-switch", "arm", "t", "--reason", "x")
    text = as_user(NOBODY, USERS, lambda: shared.opsctl("kill-switch", "disarm", "t"))
    assert text == "t: the kill switch is disarmed\n"


@pytest.mark.root
def test_user_outside_the_group_cannot_arm(shared: Trains) -> None:
    text = as_user(NOBODY, NOGROUP, lambda: shared.opsctl("kill-switch", "arm", "t", "--reason", "x"))
    assert text == (
        f"RunDirError: {shared.run().switches / 'kill'}: Permission denied"
        " | only root, and the `group` that their site.toml names, may"
    )
    assert list(shared.run().switches.iterdir()) == []


@pytest.mark.root
def test_watch_without_site_directory_writes_nothing(shared: Trains) -> None:
    site = shared.root / ".site"
    shared.opsctl("watch", "fs_quota")  # imports modules that the other user may not be able to read
    shutil.rmtree(site)
    text = as_user(NOBODY, NOGROUP, lambda: f"{site.exists()} {shared.opsctl('watch', 'fs_quota')}")
    assert text.startswith("False ok        fs_quota/root ")
    assert str(site) not in text


@pytest.mark.root
def test_unreadable_switches_are_unknown(shared: Trains) -> None:
    shared.run().switches.chmod(0o700)
    for words in (("kill-switch", "show", "t"), ("release", "t"), ("save-switch", "t")):
        text = as_user(NOBODY, NOGROUP, lambda words=words: shared.opsctl(*words))
        assert text == (
            f"RunDirError: {shared.run().switches}: Permission denied: unknown whether a switch is armed | None"
        )


@pytest.mark.root
def test_user_outside_the_group_cannot_disarm_pause(shared: Trains) -> None:
    shared.opsctl("kill-switch", "arm", "t", "--pause", "--reason", "x")
    text = as_user(NOBODY, NOGROUP, lambda: shared.opsctl("release", "t"))
    assert text.startswith(f"RunDirError: {shared.run().switches / 'pause'}: Permission denied | ")
    assert list(shared.run().requests.iterdir()) == []


@pytest.mark.root
def test_hold_by_a_team_mate_arms_the_pause_switch(shared: Trains) -> None:
    text = as_user(NOBODY, USERS, lambda: shared.opsctl("hold", "t", "--reason", "wait"))
    assert text == (
        "t: the job is not yours to hold, so the pause switch is armed instead: the running task is asked to save and"
        " stop, and the next opsctl command or watch cycle of the owner holds the queued tasks; opsctl release t takes"
        " it back\n"
    )
    (shown,) = json.loads(shared.opsctl("kill-switch", "show", "t", "--json"))
    assert (shown["switch"], shown["by"], shown["why"]) == ("pause", "nobody", "wait")
    assert not shared.rows()[0].is_held


@pytest.mark.root
def test_release_by_a_team_mate_becomes_a_request(shared: Trains) -> None:
    shared.opsctl("hold", "t")
    text = as_user(NOBODY, USERS, lambda: shared.opsctl("release", "t", "--exclude", "node004"))
    assert text == (
        "t: the job is not yours to release, so a request is left: the next `opsctl watch` of the owner, or any opsctl"
        " command of the owner for t, carries it out\n"
    )
    assert shared.rows()[0].is_held
    text = shared.opsctl("hold", "t")  # any command
    assert "t: released " in text
    assert RequestDone in shared.kinds()
    assert shared.app.slurm.excluded(shared.arrays().pop()) == "node004"


@pytest.mark.root
def test_cancel_by_a_team_mate_names_the_kill_switch(shared: Trains) -> None:
    text = as_user(NOBODY, USERS, lambda: shared.opsctl("cancel", "t"))
    assert text == (
        "NotAllowed: t: the job is not yours to cancel | opsctl kill-switch arm t --reason ... asks it to save and"
        " stop, and cancels the queue"
    )
    assert len(shared.arrays()) == 1


@pytest.mark.root
def test_edit_by_a_team_mate_is_refused(shared: Trains) -> None:
    shared.opsctl("edit", "t", shared.toml(extra=("--begin=now+1hour",)), "--dry-run")
    path = shared.toml(extra=("--begin=now+1hour",), command=("false",))
    text = as_user(NOBODY, USERS, lambda: shared.opsctl("edit", "t", path))
    assert (
        text == f"RunDirError: {shared.run().path}: belongs to another user; only the owner can edit the train | None"
    )


@pytest.mark.root
def test_kill_switch_by_a_team_mate_ends_a_running_train(slurm: Sandbox) -> None:
    with trains_on(slurm, group="users") as trains:
        wait = 'echo up >"$0"; until [ -e "$TRAIN_STOP_REQUEST" ]; do sleep 0.1; done'
        command = ("bash", "-c", wait, str(trains.place / "up"))
        trains.opsctl("launch", trains.toml(command=command, extra=()))
        trains.opsctl("kill-switch", "show", "t")
        until((trains.place / "up").exists)
        text = as_user(NOBODY, USERS, lambda: trains.opsctl("kill-switch", "arm", "t", "--reason", "stop"))
        assert text.startswith("t: the kill switch is armed")
        until(lambda: not trains.rows())
        assert AttemptFinalized in trains.kinds()
