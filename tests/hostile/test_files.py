"""Files of one hostile train: whatever they are, they hang nobody and hide no other train."""

import os
import resource
import shutil
import stat
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from opsctl.app import build
from opsctl.base.errors import OpsctlError
from opsctl.host.system import SystemClock
from opsctl.metrics.collect import effective, gather
from opsctl.state.files import append_line
from opsctl.state.journal import Journal
from opsctl.state.run_dir import check_trusted
from opsctl.telemetry.progress.run_progress import read_progress
from opsctl.trainer.atomic_files import write_atomic
from opsctl.trainer.bounded_files import open_regular
from opsctl.trainer.contract import read_heartbeat, read_stop_reason, read_time
from tests.hostile.conftest import Site
from tests.support.cases import read_table
from tests.support.hostile_users import MEMBER, OWNER, STRANGER

DEEP = "[" * 200_000
WRONG = [*read_table(__file__, "wrong"), "9" * 5000]


@pytest.mark.attack("wrong types in a record reach the program")
@pytest.mark.parametrize("text", [*WRONG, DEEP], ids=range(len(WRONG) + 1))
def test_wrong_types_are_not_read(site, text):
    run = site.train()
    (run.journal / "other-1.jsonl").write_text(text + "\n")
    for path in (run.heartbeat / "train.json", run.attempt("12_1.0").stop_reason):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert len(Journal(run, SystemClock()).events()) == 3
    assert read_heartbeat(run.heartbeat / "train.json") is None
    assert read_stop_reason(run.attempt("12_1.0").stop_reason) is None
    assert read_progress(run).step == 7


@pytest.mark.attack("a time that is no time")
@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "x", "9" * 5000])
def test_time_is_finite(tmp_path, text):
    (tmp_path / "deadline").write_text(text)
    assert read_time(tmp_path / "deadline") is None


@pytest.mark.attack("a train that cannot be read hides the metrics of others")
def test_metrics_are_isolated(site):
    site.train("tr11")
    bad = site.train("tr12")
    (bad.journal / "x.jsonl").mkdir()
    app = build()
    up = {sample.labels["train"]: sample.value for sample in gather(app) if sample.name == "opsctl_train_up"}
    assert up == {"tr11": 1.0, "tr12": 0.0}
    assert {sample.labels["train"] for sample in effective(app)} == {"tr11"}


@pytest.mark.attack("many small events fill the memory")
def test_journal_is_bounded(site):
    run = site.train()
    line = b'{"n":1,"at":"2026-01-01T00:00:00+00:00","actor":"","kind":"released","jobs":[]}\n'
    (run.journal / "x.jsonl").write_bytes(line * 300_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OpsctlError, match="more than 200000 new events"):
        Journal(run, SystemClock()).events()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


@pytest.mark.attack("the path to what is run leads through a link into a directory of everybody")
def test_trust_follows_links(tmp_path):
    open_directory = tmp_path / "open"
    (open_directory / "trains" / "tr11").mkdir(parents=True)
    open_directory.chmod(0o777)
    (tmp_path / "root").symlink_to(open_directory / "trains")
    for root in (None, tmp_path):
        with pytest.raises(OpsctlError, match=r"open: mode 0777 lets others write"):
            check_trusted([tmp_path / "root" / "tr11"], root=root)


@pytest.mark.attack("a chain of links leads through a directory of everybody")
def test_trust_follows_every_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "hop").symlink_to(tmp_path / "real")
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "root").symlink_to(tmp_path / "open" / "hop")
    with pytest.raises(OpsctlError, match=r"open: mode 0777 lets others write"):
        check_trusted([tmp_path / "root"], root=tmp_path)


def exchange(directory: Path, target: Path, stop: Path) -> None:
    """Replace every temporary file in `directory` by a link to `target` until `stop` exists."""
    deadline = time.monotonic() + 20
    while not stop.exists() and time.monotonic() < deadline:
        for name in os.listdir(directory):
            with suppress(OSError):
                if name.startswith("."):
                    os.unlink(directory / name)
                    os.symlink(target, directory / name)


class TestUsers:
    pytestmark = pytest.mark.root

    @pytest.mark.attack("a name is exchanged between the creation of a file and its chmod")
    def test_private_file_keeps_its_mode(self, site: Site):
        """The member exchanges every temporary file that appears by a link to the owner's private file."""
        run = site.owned_train()
        secret = site.root.parent / "secret"
        secret.write_text("private")
        secret.chmod(0o600)
        os.chown(secret, OWNER.uid, -1)
        stop = site.root.parent / "stop"

        def write() -> None:
            for _ in range(400):
                with suppress(OSError):
                    write_atomic(run.switches / "save", "x", mode=0o664)

        attackers = [os.fork() for _ in range(2)]
        for pid in attackers:
            if pid == 0:
                MEMBER.run(lambda: exchange(run.switches, secret, stop))
                os._exit(0)
        OWNER.run(write)
        stop.touch()
        for pid in attackers:
            os.waitpid(pid, 0)
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600

    @pytest.mark.attack("a stranger plants the journal of another user")
    def test_journal_of_a_stranger_is_not_appended_to(self, site: Site):
        path = site.root / "journal"
        STRANGER.run(lambda: path.write_text("") or path.chmod(0o666))
        assert "belongs to uid" in OWNER.run(lambda: append_line(path, b"x\n")) or path.read_text() == ""
        assert path.read_text() == ""


@pytest.mark.attack("a directory of a stranger's train is a link to a directory that its reader alone can read")
@pytest.mark.root
@pytest.mark.parametrize("place", ["logs", "logs/12_1.0", "journal", "heartbeat", "attempts", "checkpoints"])
@pytest.mark.parametrize("owner", [0, STRANGER.uid])
def test_directory_of_a_stranger_leads_nowhere(site: Site, tmp_path: Path, place: str, owner: int) -> None:
    run = site.train()
    private = tmp_path / "private"
    private.mkdir()
    (private / "a.log").write_text("RuntimeError: x\n")
    shutil.rmtree(run.path / place, ignore_errors=True)
    (run.path / place).symlink_to(private)
    os.chown(run.path / place, owner, -1, follow_symlinks=False)
    with nullcontext() if owner == 0 else pytest.raises(OSError, match="link of another user"):
        os.close(open_regular(run.path / place / "a.log"))
