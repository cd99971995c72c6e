"""Switches in a directory where every member of the team can rename, remove and make entries."""

import os
import subprocess

import pytest

from opsctl.host.system import SystemClock
from opsctl.state import switches
from opsctl.state.events import SwitchArmed
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import RequestKind, Switch
from tests.hostile.conftest import Site
from tests.support.cases import read_cases
from tests.support.hostile_users import MEMBER, OWNER, STRANGER


@pytest.mark.attack("a directory in place of a switch cannot be disarmed")
@pytest.mark.parametrize("entries", [(), ("x",)], ids=["empty", "full"])
def test_directory_is_reported_and_cleared(site, entries):
    run = site.train()
    path = switches.path_of(run, Switch.PAUSE)
    path.mkdir()
    for name in entries:
        (path / name).mkdir()
    armed = switches.read(run, Switch.PAUSE)
    assert armed.why == "a directory in place of the switch; disarming removes it"
    assert switches.disarm(run, Switch.PAUSE)
    assert switches.read(run, Switch.PAUSE) is None
    assert switches.arm(run, Switch.PAUSE, why="")


@pytest.mark.attack("the text of a switch fills the terminal")
@pytest.mark.parametrize("text", ["x" * 9000, '{"why": ["' + "x" * 9000 + '"]}', '{"why": "' + "x" * 9000 + '"}'])
def test_reason_is_short(site, text):
    run = site.train()
    switches.path_of(run, Switch.SAVE).write_text(text)
    assert len(switches.read(run, Switch.SAVE).why) <= 500


class TestUsers:
    pytestmark = pytest.mark.root

    def armed(self, run: RunDir, switch: Switch) -> str:
        return OWNER.run(lambda: switches.read(RunDir(run.path), switch).by)

    @pytest.mark.attack("a renamed switch is attributed to its owner")
    @pytest.mark.parametrize("content", ["armed", "touched"])
    def test_renamed_switch_is_nobodys(self, site: Site, content):
        run = site.owned_train()
        path = switches.path_of(run, Switch.SAVE)
        if content == "armed":
            assert OWNER.run(lambda: switches.arm(RunDir(run.path), Switch.SAVE, why="before lunch")) == "True"
        else:
            OWNER.run(path.touch)
        said = MEMBER.run(lambda: path.rename(switches.path_of(run, Switch.PAUSE)))
        assert said.endswith("pause"), said
        assert self.armed(run, Switch.PAUSE) == "somebody (with a file of nobody)"
        OWNER.run(lambda: switches.journal_switches(RunDir(run.path), Journal(RunDir(run.path), SystemClock())))
        [event] = [event for event in Journal(run, SystemClock()).events() if isinstance(event, SwitchArmed)]
        assert event.by == "somebody (with a file of nobody)"

    @pytest.mark.attack("a member rewrites or brings back a switch of the owner")
    @pytest.mark.parametrize("how", ["linked", "rewritten", "linked elsewhere", "brought back", "old mode"])
    def test_contents_are_no_evidence(self, site: Site, how):
        """The owner's file says what the member wants; only links, modes and times tell."""
        run = site.owned_train()
        path, aside = switches.path_of(run, Switch.SAVE), run.switches / "aside"
        kind = Switch.SAVE if how == "brought back" else Switch.KILL
        OWNER.run(lambda: switches.arm(RunDir(run.path), kind, why="x"))
        path = switches.path_of(run, kind)
        OWNER.run(lambda: os.utime(path, (path.stat().st_mtime - 100,) * 2))
        text = '{"switch": "kill", "train": "tr11"}'
        if how in ("linked", "rewritten"):
            OWNER.run(lambda: switches.disarm(RunDir(run.path), kind))
            OWNER.run(lambda: switches.arm(RunDir(run.path), Switch.SAVE, why="x"))
            save = switches.path_of(run, Switch.SAVE)
            aside.hardlink_to(save)  # as root: not every kernel lets a member
            assert MEMBER.run(lambda: (aside if how == "linked" else save).write_text(text)).startswith("Permission")
            assert MEMBER.run(lambda: save.rename(path)).endswith("kill")
        elif how == "linked elsewhere":
            aside.hardlink_to(path)
        elif how == "brought back":
            MEMBER.run(lambda: path.rename(aside))
            assert MEMBER.run(lambda: aside.rename(path)).endswith("save")
        else:
            path.chmod(0o664)
            assert MEMBER.run(lambda: path.write_text(text)) == str(len(text))
        assert self.armed(run, kind) == "somebody (with a file of nobody)"

    @pytest.mark.attack("a member makes a kill switch of what the owner has left")
    @pytest.mark.parametrize(*read_cases(__file__, "forged"))
    def test_forged_switch_is_nobodys(self, site: Site, change: str):
        """The owner has armed a save switch, left a request, and has a private kill switch of another train."""
        run, other = site.owned_train(), site.owned_train("tr12")
        OWNER.run(lambda: switches.arm(RunDir(run.path), Switch.SAVE, why='"switch": "kill"'))
        OWNER.run(lambda: switches.arm(RunDir(other.path), Switch.KILL, why="x"))
        OWNER.run(lambda: switches.request(RunDir(run.path), RequestKind.RELEASE))
        MEMBER.run(lambda: subprocess.run(["bash", "-c", change], cwd=run.switches, capture_output=True, check=False))
        assert "by='nobody'" not in OWNER.run(lambda: switches.read(RunDir(run.path), Switch.KILL))

    @pytest.mark.attack("a switch is moved from one train to another")
    def test_switch_of_another_train_is_nobodys(self, site: Site):
        one, two = site.owned_train("tr11"), site.owned_train("tr12")
        OWNER.run(lambda: switches.arm(RunDir(one.path), Switch.KILL, why=""))
        MEMBER.run(lambda: switches.path_of(one, Switch.KILL).rename(switches.path_of(two, Switch.KILL)))
        assert self.armed(two, Switch.KILL) == "somebody (with a file of nobody)"

    @pytest.mark.attack("a member's own switch is attributed to somebody else")
    def test_member_who_arms_is_named(self, site: Site):
        run = site.owned_train()
        said = MEMBER.run(lambda: switches.arm(RunDir(run.path), Switch.SAVE, why="x"))
        assert said == "True"
        assert self.armed(run, Switch.SAVE) == "daemon"

    @pytest.mark.attack("a directory of a member in place of a switch cannot be disarmed by the owner")
    def test_owner_clears_a_members_directory(self, site: Site):
        run = site.owned_train()
        path = switches.path_of(run, Switch.PAUSE)

        def make() -> None:
            path.mkdir()
            (path / "x").touch()

        MEMBER.run(make)
        assert OWNER.run(lambda: switches.disarm(RunDir(run.path), Switch.PAUSE)) == "True"
        assert not path.exists()

    @pytest.mark.attack("a stranger arms a switch")
    def test_stranger_arms_nothing(self, site: Site):
        run = site.owned_train()
        assert STRANGER.run(lambda: switches.arm(RunDir(run.path), Switch.KILL, why="")).startswith("RunDirError")
        assert os.listdir(run.switches) == []
