"""Full disks, read-only directories, two at once, death in the middle: no alert is lost."""

import json
import shutil
import subprocess
import sys

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.outbox import Outbox
from opsctl.errors import RunDirError
from opsctl.model import Level
from tests.integration.alerts.conftest import journal
from tests.unit.alerts.conftest import World, finding


def told(path):
    """The subjects in a file that alerts are told to."""
    return [line[20:] for line in path.read_text().splitlines() if line.startswith("20")] if path.exists() else []


CRITICAL = "[opsctl] CRITICAL: hang/gpt: it is critical"
RESOLVED = "[opsctl] RESOLVED: hang/gpt: it is ok"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "told"


@pytest.fixture
def world(site, out):
    return site({"file": {"kind": "file", "path": str(out)}})


@pytest.fixture
def small_disk(world):
    """The site's directory is a file system of its own, of 256 kB."""
    place = world.site.path
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no mount")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs to mount: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place):
    with pytest.raises(OSError, match="No space"), (place / "filler").open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()


def read_only(place, *, yes):
    subprocess.run(["mount", "-o", f"remount,{'ro' if yes else 'rw'}", str(place)], check=True)


def cycles(world, marks):
    """So many looks, each with its alerts."""
    for mark in marks:
        world.record(mark)
        dispatch.send_alerts(world.alerting)
        world.clock.forward(minutes=10)


def test_a_disk_that_is_full_does_not_keep_the_alert_that_it_is_full(world, small_disk, out):
    cycles(world, "..")
    fill(small_disk)
    cycles(world, "CCC")
    assert told(out) == [CRITICAL]
    assert world.ledger.levels()["hang/gpt"].level is Level.CRITICAL
    (small_disk / "filler").unlink()
    cycles(world, "C..")
    assert told(out) == [CRITICAL, RESOLVED]
    assert world.ledger.levels()["hang/gpt"].level is Level.OK
    assert not (world.spare.alerts / "ledger.json").exists()


def test_a_disk_that_is_full_when_it_is_over(world, small_disk, out):
    cycles(world, "C")
    fill(small_disk)
    cycles(world, "..")
    (small_disk / "filler").unlink()
    cycles(world, "..")
    assert told(out) == [CRITICAL, RESOLVED]


def test_a_directory_that_becomes_read_only_keeps_nothing_from_being_told(world, small_disk, out):
    cycles(world, ".")
    read_only(small_disk, yes=True)
    cycles(world, "CC")
    assert told(out) == [CRITICAL]
    read_only(small_disk, yes=False)
    cycles(world, "C.")
    assert told(out) == [CRITICAL, RESOLVED]


def test_what_waits_in_a_directory_that_became_read_only_is_told_once(world, small_disk, out):
    cycles(world, ".")
    world.record("C")
    read_only(small_disk, yes=True)
    cycles(world, "CC")
    read_only(small_disk, yes=False)
    cycles(world, "CC")
    assert told(out) == [CRITICAL]


def test_what_could_not_be_sent_before_the_disk_was_full_is_sent_while_it_is(world, small_disk, out):
    out.mkdir()
    cycles(world, "C")
    fill(small_disk)
    out.rmdir()
    cycles(world, "CCC")
    assert told(out) == [CRITICAL]
    (small_disk / "filler").unlink()
    cycles(world, "CC")
    assert told(out) == [CRITICAL]
    assert dispatch.list_undelivered(world.alerting) == []


def test_where_nothing_can_be_written_at_all_the_cycle_is_told(world, small_disk):
    read_only(small_disk, yes=True)
    world.spare.path.write_text("in the way")
    with pytest.raises(RunDirError):
        world.record("C")


RECORD = """
import json, sys
from pathlib import Path
from opsctl.alerts import dispatch
from opsctl.host.system import SystemClock
sys.path.insert(0, sys.argv[2])
from opsctl.settings.alerts import AlertSettings
from tests.unit.alerts.conftest import World, finding
channel = {"kind": "file", "path": sys.argv[1] + "/told"}
world = World(
    Path(sys.argv[1]), clock=SystemClock(), rules=AlertSettings.model_validate({"channels": {"file": channel}})
)
told = []
for mark in "CC..CC..":
    for train in range(5):
        told += world.record(mark, key=f"hang/{train}")
    dispatch.send_alerts(world.alerting)
print(json.dumps(told))
"""


def test_two_that_look_at_once_tell_everything_once(tmp_path, request):
    argv = [sys.executable, "-c", RECORD, str(tmp_path), str(request.config.rootpath)]
    many = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [popen.communicate(timeout=250)[0] for popen in many]
    noted = [mark for output in outputs for mark in json.loads(output)]
    messages = told(tmp_path / "told")
    assert len(messages) == len(noted)
    delivered = [path.name for path in (tmp_path / "site/alerts/delivered/file").glob("*.json")]
    assert len(delivered) == len(set(delivered)) == len(messages)
    world = World(tmp_path)
    assert world.ledger.read().pending == []
    assert dispatch.list_undelivered(world.alerting) == []


class Dies(BaseException):
    """What a kill at that place does."""


def test_one_that_dies_after_recording_leaves_it_to_the_next(world, out):
    world.record("C")
    assert told(out) == []
    cycles(world, "C")
    assert told(out) == [CRITICAL]


def test_one_that_dies_between_outbox_and_ledger_doubles_nothing(world, out, monkeypatch):
    world.record("C")
    with monkeypatch.context() as patched:
        patched.setattr("opsctl.alerts.ledger.dump", lambda state: (_ for _ in ()).throw(Dies))
        with pytest.raises(Dies):
            dispatch.send_alerts(world.alerting)
    assert len(dispatch.list_undelivered(world.alerting)) == 1
    cycles(world, "C")
    assert told(out) == [CRITICAL]


def test_one_that_dies_while_putting_a_batch_into_the_outbox_loses_and_doubles_nothing(world, out, monkeypatch):
    world.ledger.record([finding(Level.CRITICAL, f"hang/{n}") for n in range(4)])
    put, count = Outbox.put, []

    def dies(self, item):
        count.append(item)
        if len(count) == 3:
            raise Dies
        put(self, item)

    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "put", dies)
        with pytest.raises(Dies):
            dispatch.send_alerts(world.alerting)
    dispatch.send_alerts(world.alerting)
    assert sorted(told(out)) == [f"[opsctl] CRITICAL: hang/{n}: it is critical" for n in range(4)]


def test_one_that_dies_after_sending_sends_again_and_the_journal_says_so(world, out, monkeypatch):
    world.record("C")
    write = Outbox._try_to_write

    def dies(outbox, path, item):
        if item.is_delivered:
            raise Dies
        return write(outbox, path, item)

    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "_try_to_write", dies)
        with pytest.raises(Dies):
            dispatch.send_alerts(world.alerting)
    cycles(world, "C")
    assert told(out) == [CRITICAL, CRITICAL]
    assert journal(world).count("ambiguous") == 1


def test_one_that_dies_after_noting_that_it_was_taken_does_not_send_again(world, out, monkeypatch):
    world.record("C")
    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "_archive", lambda *_, **__: (_ for _ in ()).throw(Dies))
        with pytest.raises(Dies):
            dispatch.send_alerts(world.alerting)
    cycles(world, "C")
    assert told(out) == [CRITICAL]
    assert dispatch.list_undelivered(world.alerting) == []


def test_a_storm_is_one_message_and_so_is_its_end(world, out):
    for level in (Level.CRITICAL, Level.OK):
        world.ledger.record([finding(level, f"hang/{n:02}") for n in range(50)])
        dispatch.send_alerts(world.alerting)
    assert told(out) == ["[opsctl] 50 alerts at once: 50 CRITICAL", "[opsctl] 50 alerts at once: 50 RESOLVED"]


@pytest.mark.parametrize(("changes", "messages"), [(9, 9), (10, 1)])
def test_ten_changes_are_a_storm_and_nine_are_not(world, out, changes, messages):
    world.ledger.record([finding(Level.CRITICAL, f"hang/{n:02}") for n in range(changes)])
    dispatch.send_alerts(world.alerting)
    assert len(told(out)) == messages


def test_of_a_storm_each_end_is_told_in_its_thread(site, by_mail, mail_server):
    world = site({"mail": by_mail})
    world.ledger.record([finding(Level.CRITICAL, f"hang/{n:02}") for n in range(50)])
    dispatch.send_alerts(world.alerting)
    world.ledger.record([finding(Level.OK, "hang/07")])
    dispatch.send_alerts(world.alerting)
    assert mail_server.mails[1][0]["In-Reply-To"] == mail_server.ids[0]


def test_a_channel_that_was_taken_out_of_the_settings_leaves_its_messages_to_another(site, out, tmp_path):
    world = site({"gone": {"kind": "file", "path": "/not/there"}})
    world.record("C")
    dispatch.send_alerts(world.alerting)
    world.rules = site({"file": {"kind": "file", "path": str(out)}}).rules
    world.clock.forward(hours=2)
    dispatch.send_alerts(world.alerting)
    assert told(out) == [CRITICAL]
