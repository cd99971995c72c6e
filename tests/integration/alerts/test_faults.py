"""Full disks, read-only directories, simultaneous processes and kills: no alert is lost."""

import itertools
import json
import subprocess
import sys

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.outbox import Outbox
from opsctl.base.errors import RunDirError
from opsctl.base.findings import Severity
from tests.integration.alerts.conftest import read_kinds
from tests.support.mounts import mounting
from tests.unit.alerts.conftest import World, finding


def read_subjects(path):
    """Return the subjects of the alerts in a file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line[20:] for line in lines if line.startswith("20")]


CRITICAL = "[opsctl] CRITICAL: gpt: it is critical"
RESOLVED = "[opsctl] RESOLVED: gpt: it is ok"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "alerts.txt"


@pytest.fixture
def world(site, out):
    return site({"file": {"kind": "file", "path": str(out)}})


@pytest.fixture
def small_disk(world):
    """A file system of 256 kB, mounted on the site directory."""
    place = world.site.path
    place.mkdir()
    with mounting(place, "size=256k"):
        yield place


def fill(place):
    with pytest.raises(OSError, match="No space"), (place / "filler").open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()


def read_only(place, *, yes):
    subprocess.run(["mount", "-o", f"remount,{'ro' if yes else 'rw'}", str(place)], check=True)


def run_cycles(world, marks):
    """Record one finding per mark, ten minutes apart, and send the alerts of each."""
    for mark in marks:
        world.record(mark)
        dispatch.send_alerts(world.alerting)
        world.clock.forward(minutes=10)


@pytest.mark.root
def test_full_disk_does_not_stop_its_own_alert(world, small_disk, out):
    run_cycles(world, "..")
    fill(small_disk)
    run_cycles(world, "CCC")
    assert read_subjects(out) == [CRITICAL]
    assert world.ledger.entries()["hang/gpt"].severity is Severity.CRITICAL
    (small_disk / "filler").unlink()
    run_cycles(world, "C..")
    assert read_subjects(out) == [CRITICAL, RESOLVED]
    assert world.ledger.entries()["hang/gpt"].severity is Severity.OK
    assert not (world.spare.alerts / "ledger.json").exists()


@pytest.mark.root
def test_alert_is_resolved_while_the_disk_is_full(world, small_disk, out):
    run_cycles(world, "C")
    fill(small_disk)
    run_cycles(world, "..")
    (small_disk / "filler").unlink()
    run_cycles(world, "..")
    assert read_subjects(out) == [CRITICAL, RESOLVED]


@pytest.mark.root
def test_read_only_directory_does_not_stop_alerts(world, small_disk, out):
    run_cycles(world, ".")
    read_only(small_disk, yes=True)
    run_cycles(world, "CC")
    assert read_subjects(out) == [CRITICAL]
    read_only(small_disk, yes=False)
    run_cycles(world, "C.")
    assert read_subjects(out) == [CRITICAL, RESOLVED]


@pytest.mark.root
def test_alert_recorded_before_read_only_is_sent_once(world, small_disk, out):
    run_cycles(world, ".")
    world.record("C")
    read_only(small_disk, yes=True)
    run_cycles(world, "CC")
    read_only(small_disk, yes=False)
    run_cycles(world, "CC")
    assert read_subjects(out) == [CRITICAL]


@pytest.mark.root
def test_undelivered_alert_is_sent_on_a_full_disk(world, small_disk, out):
    out.mkdir()
    run_cycles(world, "C")
    fill(small_disk)
    out.rmdir()
    run_cycles(world, "CCC")
    assert read_subjects(out) == [CRITICAL]
    (small_disk / "filler").unlink()
    run_cycles(world, "CC")
    assert read_subjects(out) == [CRITICAL]
    assert dispatch.list_undelivered(world.alerting) == []


@pytest.mark.root
def test_cycle_fails_where_no_directory_is_writable(world, small_disk):
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
channel = {"kind": "file", "path": sys.argv[1] + "/alerts.txt"}
world = World(
    Path(sys.argv[1]), clock=SystemClock(), rules=AlertSettings.model_validate({"channels": {"file": channel}})
)
transitions = []
for mark in "CC..CC..":
    for train in range(5):
        transitions += world.record(mark, key=f"hang/{train}")
    dispatch.send_alerts(world.alerting)
print(json.dumps(transitions))
"""


def test_simultaneous_processes_send_every_alert_once(tmp_path, request):
    argv = [sys.executable, "-c", RECORD, str(tmp_path), str(request.config.rootpath)]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=250)[0] for process in processes]
    transitions = list(itertools.chain.from_iterable(json.loads(output) for output in outputs))
    messages = read_subjects(tmp_path / "alerts.txt")
    assert len(messages) == len(transitions)
    delivered = [path.name for path in (tmp_path / "site/alerts/delivered/file").glob("*.json")]
    assert len(delivered) == len(set(delivered)) == len(messages)
    world = World(tmp_path)
    assert world.ledger.read().pending == []
    assert dispatch.list_undelivered(world.alerting) == []


class Killed(BaseException):
    """Ends the process as a kill would."""


def test_death_after_recording_leaves_delivery_to_the_next(world, out):
    world.record("C")
    assert read_subjects(out) == []
    run_cycles(world, "C")
    assert read_subjects(out) == [CRITICAL]


def test_death_between_outbox_and_ledger_doubles_nothing(world, out, monkeypatch):
    world.record("C")
    with monkeypatch.context() as patched:
        patched.setattr("opsctl.alerts.ledger.dump", lambda state: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            dispatch.send_alerts(world.alerting)
    assert len(dispatch.list_undelivered(world.alerting)) == 1
    run_cycles(world, "C")
    assert read_subjects(out) == [CRITICAL]


def test_death_while_filling_the_outbox_loses_nothing(world, out, monkeypatch):
    world.ledger.record([finding(Severity.CRITICAL, f"hang/{n}", train=f"t{n}") for n in range(4)])
    put, count = Outbox.put, []

    def put_two_and_die(self, item):
        count.append(item)
        if len(count) == 3:
            raise Killed
        put(self, item)

    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "put", put_two_and_die)
        with pytest.raises(Killed):
            dispatch.send_alerts(world.alerting)
    dispatch.send_alerts(world.alerting)
    assert sorted(read_subjects(out)) == [f"[opsctl] CRITICAL: t{n}: it is critical" for n in range(4)]


def test_death_after_sending_is_ambiguous_and_sends_again(world, out, monkeypatch):
    world.record("C")
    write = Outbox._try_to_write

    def die_after_delivery(outbox, path, item):
        if item.is_delivered:
            raise Killed
        return write(outbox, path, item)

    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "_try_to_write", die_after_delivery)
        with pytest.raises(Killed):
            dispatch.send_alerts(world.alerting)
    run_cycles(world, "C")
    assert read_subjects(out) == [CRITICAL, CRITICAL]
    assert read_kinds(world).count("ambiguous") == 1


def test_death_after_recorded_delivery_sends_once(world, out, monkeypatch):
    world.record("C")
    with monkeypatch.context() as patched:
        patched.setattr(Outbox, "_archive", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            dispatch.send_alerts(world.alerting)
    run_cycles(world, "C")
    assert read_subjects(out) == [CRITICAL]
    assert dispatch.list_undelivered(world.alerting) == []


def test_storm_and_its_end_are_one_message_each(world, out):
    for severity in (Severity.CRITICAL, Severity.OK):
        world.ledger.record([finding(severity, f"hang/{n:02}") for n in range(50)])
        dispatch.send_alerts(world.alerting)
    counts = [subject.partition(";")[0] for subject in read_subjects(out)]
    assert counts == ["[opsctl] 50 alerts at once: 50 CRITICAL", "[opsctl] 50 alerts at once: 50 RESOLVED"]


@pytest.mark.parametrize(("changes", "messages"), [(9, 9), (10, 1)])
def test_ten_changes_are_a_storm(world, out, changes, messages):
    world.ledger.record([finding(Severity.CRITICAL, f"hang/{n:02}", train=f"t{n}") for n in range(changes)])
    dispatch.send_alerts(world.alerting)
    assert len(read_subjects(out)) == messages


def test_end_of_a_stormy_alert_is_sent_in_its_thread(site, by_mail, mail_server):
    world = site({"mail": by_mail})
    world.ledger.record([finding(Severity.CRITICAL, f"hang/{n:02}") for n in range(50)])
    dispatch.send_alerts(world.alerting)
    world.ledger.record([finding(Severity.OK, "hang/07")])
    dispatch.send_alerts(world.alerting)
    assert mail_server.mails[1][0]["In-Reply-To"] == mail_server.ids[0]


def test_messages_of_a_removed_channel_go_to_another(site, out, tmp_path):
    world = site({"gone": {"kind": "file", "path": "/not/there"}})
    world.record("C")
    dispatch.send_alerts(world.alerting)
    world.rules = site({"file": {"kind": "file", "path": str(out)}}).rules
    world.clock.forward(hours=2)
    dispatch.send_alerts(world.alerting)
    assert read_subjects(out) == [CRITICAL]
