"""Requests: any text from any member of the team, read by a strict grammar, within bounds, one by one."""

import json
import os
import time
from functools import partial

import pytest

from opsctl.host.system import SystemClock
from opsctl.monitor.reconcile import reconcile
from opsctl.monitor.status import read_status
from opsctl.state import requests
from opsctl.state.events import RequestRefused
from opsctl.state.files import list_names
from opsctl.state.journal import Journal
from opsctl.state.reasons import as_written
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import RequestKind, request
from tests.hostile.conftest import Site
from tests.support.cases import read_table
from tests.support.finalized_trains import QueuedTrain
from tests.support.hostile_users import MEMBER, OWNER

VALID = {"verb": "release", "train": "gpt", "exclude": ""}
LONG = {"4,400 digits": {"exclude": f"node[1-{'9' * 4400}]"}, "10,000 letters": {"exclude": "a" * 10_000}}
HOSTILE = {name: VALID | fields for name, fields in (LONG | read_table(__file__, "hostile")).items()}
CONTENTS = {name: json.dumps(fields) for name, fields in HOSTILE.items()} | {
    "deep JSON": "[" * 100_000,
    "a huge number": "1" * 5000,
    "binary": "\0" * 100,
    "too long": json.dumps({**VALID, "exclude": " " * 20_000}),
}
NODE_LISTS = [*(fields["exclude"] for fields in list(HOSTILE.values())[:5]), "[" * 50_000, "1," * 40_000]


def plant(train: QueuedTrain, text: str, name: str = "release-0123456789ab.json"):
    path = train.run.requests / name
    path.write_text(text)
    return path


@pytest.mark.attack("a request that raises ends all commands of the owner")
@pytest.mark.parametrize("text", CONTENTS.values(), ids=CONTENTS)
def test_hostile_request_is_set_aside(train, text):
    train.arrays.hold(as_written("bad loss"))
    plant(train, text)
    good = request(train.run, RequestKind.RELEASE, exclude="node001")
    began = time.process_time()
    done = reconcile(train.arrays)
    assert time.process_time() - began < 5
    assert not good.exists()
    assert "released 12 without node001, as requested" in done[-1]
    assert all(len(line) < 500 for line in done)
    assert os.listdir(train.run.requests) == []


@pytest.mark.attack("a refused request fills the terminal and the journal")
def test_refusal_is_short(train):
    train.arrays.hold(as_written("bad loss"))
    request(train.run, RequestKind.RELEASE, exclude=",".join(f"absent{number}" for number in range(90)))
    [line] = reconcile(train.arrays)
    [event] = [event for event in train.arrays.journal.events() if isinstance(event, RequestRefused)]
    assert len(line) < 500
    assert len(event.why) < 500


@pytest.mark.attack("an entry that is no file stands in place of a request")
@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "full directory"])
def test_entry_that_is_no_file_is_set_aside(train, kind, tmp_path):
    path = train.run.requests / "release-0123456789ab.json"
    (tmp_path / "secret").write_text(json.dumps(VALID))
    {
        "pipe": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(tmp_path / "secret"),
        "directory": path.mkdir,
        "full directory": lambda: (path / "x").mkdir(parents=True),
    }[kind]()
    [line] = reconcile(train.arrays)
    assert "not a regular file" in line
    assert [name for name in os.listdir(train.run.requests) if not name.startswith(".")] == []


@pytest.mark.attack("20,000 junk files are read at each look")
def test_look_is_bounded(train):
    for number in range(20_000):
        (train.run.requests / f"release-{number:012x}.json").touch()
    began = time.process_time()
    assert requests.read_requests(train.run)[0] == []
    assert time.process_time() - began < 0.5
    [line] = reconcile(train.arrays)
    assert line.endswith("and 997 more")
    kinds = [type(event) for event in train.arrays.journal.events()]
    assert kinds.count(RequestRefused) == 1
    for _ in range(3):
        reconcile(train.arrays)
    assert len(os.listdir(train.run.path / "refused-requests")) <= requests.MAX_SET_ASIDE


@pytest.mark.attack("so many entries that a request among them is never read, and nothing says so")
def test_many_entries_hide_no_request(train, monkeypatch):
    monkeypatch.setattr("opsctl.state.requests.list_names", partial(list_names, max_entries=25_000))
    train.arrays.hold(as_written("bad loss"))
    for number in range(21_000):
        (train.run.requests / f"x{number}").touch()
    good = request(train.run, RequestKind.RELEASE)
    notes = read_status(train.run, train.arrays.journal, train.queue.rows, train.clock.now()).notes
    assert any(f"20000 entries of {train.run.requests} are no requests" in note for note in notes)
    reconcile(train.arrays)
    assert not good.exists()
    for number in range(25_001):
        (train.run.requests / f".x{number}").touch()
    with pytest.raises(OSError, match="more than 25000 entries"):
        reconcile(train.arrays)


class TestMember:
    pytestmark = pytest.mark.root

    @pytest.mark.attack("a member of the team blocks the owner by a request")
    def test_member_cannot_block_the_owner(self, site: Site):
        run = site.owned_train("gpt")
        text = CONTENTS["4,400 digits"]
        path = run.requests / "release-0123456789ab.json"
        assert MEMBER.run(lambda: path.write_text(text)) == str(len(text))

        def look() -> object:
            again = RunDir(run.path)
            found, bad = requests.read_requests(again)
            assert not found
            line = requests.set_aside(again, bad)
            Journal(again, SystemClock()).append(RequestRefused(verb="", by=bad[0].by, why=line))
            return line

        assert "by daemon: " in OWNER.run(look)
        assert os.listdir(run.requests) == []
