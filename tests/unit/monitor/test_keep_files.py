"""Old files of a train are packed; every reader reads through the archives; nothing else is touched."""

import errno
import io
import os
import shutil
import sys
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.base.errors import RunDirError
from opsctl.cli import cli
from opsctl.guard.end_record import date_last_output
from opsctl.monitor import keep_files
from opsctl.monitor.keep_files import carry_out, plan, read_keep_table
from opsctl.settings.loader import KeepTable, SiteSettings
from opsctl.state import archive as archive_module
from opsctl.state.archive import MAX_READ_BYTES, pack
from opsctl.state.files import ARCHIVE_SUFFIX, find_archive, parse_json
from opsctl.state.journal import Journal
from opsctl.state.packed import unpacked
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.logs.train_logs import RankLogs
from tests.support.finalized_trains import QueuedTrain, make_train

KEEP = KeepTable(attempts=1, pack_days=7)
OLD, NEWEST, RUNNING = "12_1.0", "12_2.0", "12_3.0"
NOBODY = 65534
LINES = b"iteration 1/ 10 | lm loss: 2.0\nRuntimeError: CUDA error: an illegal memory access was encountered\n"


def write(path: Path, train: QueuedTrain) -> None:
    path.write_bytes(LINES)
    os.utime(path, (train.clock.now().timestamp(),) * 2)


@pytest.fixture
def train(tmp_path: Path) -> QueuedTrain:
    """Three attempts of a month ago, two of them finalized, each with logs and evidence."""
    train = make_train(tmp_path)
    for attempt in map(train.start_attempt, (OLD, NEWEST, RUNNING)):
        for path in (
            *(train.run.logs / attempt.name / f"node001-{rank}.log" for rank in (0, 1)),
            attempt.path / "evidence" / "hang-1" / "0.txt",
            attempt.path / "flight-0",
            attempt.repro / "env.json",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, train)
        if attempt.name != RUNNING:
            attempt.end.write_text("{}")
            os.utime(attempt.end, (train.clock.now().timestamp(),) * 2)
        train.clock.sleep(60)
    train.clock.time += timedelta(days=30)
    return train


def pack_all(train: QueuedTrain, keep: KeepTable = KEEP) -> None:
    """Pack, and an hour later remove the originals."""
    for _ in range(2):
        carry_out(plan(train.run, keep, train.clock.now()), train.run, train.clock)
        train.clock.sleep(2 * keep_files.READ_S)


def contents(place: Path) -> dict[str, bytes]:
    files = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


def read_old(run: RunDir) -> dict[str, bytes]:
    """Return all files of the old attempt, as readers see them."""
    logs = contents(run.attempt_logs(OLD))
    parts = {name: contents(unpacked(run.attempt(OLD).path / name)) for name in keep_files.BELOW_ATTEMPT}
    flights = {
        path.name: path.read_bytes() for path in unpacked(run.attempt(OLD).path / "flight").parent.glob("flight-*")
    }
    return (
        logs
        | {f"{name}/{file}": data for name, files in parts.items() for file, data in files.items()}
        | {f"flight/{name}": data for name, data in flights.items()}
    )


def test_old_attempt_is_packed_and_reads_as_before(train: QueuedTrain) -> None:
    (train.run.logs / OLD / "first-exit").touch()  # later than the last output
    before, others = read_old(train.run), [contents(train.run.logs / name) for name in (NEWEST, RUNNING)]
    last = date_last_output(train.run, train.run.attempt(OLD))
    assert len(before) == 6
    pack_all(train)
    assert not (train.run.logs / OLD).exists()
    names = sorted(path.name.removesuffix(".tar.gz") for path in train.run.attempt(OLD).path.iterdir())
    assert names == ["end.json", "evidence", "flight", "repro", "start.json"]
    assert read_old(train.run) == before
    assert [contents(train.run.logs / name) for name in (NEWEST, RUNNING)] == others
    assert date_last_output(train.run, train.run.attempt(OLD)) == last
    assert plan(train.run, KEEP, train.clock.now()) == []


def test_rank_logs_read_a_packed_attempt(train: QueuedTrain) -> None:
    pack_all(train)
    logs = RankLogs(run=train.run, journal=Journal(train.run, train.clock), task=1)
    assert list(logs.tail(1)) == [b"[node001:%d]: %b" % (rank, LINES.splitlines()[-1]) for rank in (0, 1)]


def test_originals_stay_for_those_who_read_them(train: QueuedTrain) -> None:
    carry_out(plan(train.run, KEEP, train.clock.now()), train.run, train.clock)
    assert plan(train.run, KEEP, datetime.now(UTC)) == []
    assert len(contents(train.run.logs / OLD)) == 2


@pytest.mark.parametrize(
    "keep", [KeepTable(attempts=2), KeepTable(attempts=1, pack_days=0), KeepTable(attempts=1, pack_days=31)]
)
def test_nothing_is_due(train: QueuedTrain, keep: KeepTable) -> None:
    assert plan(train.run, keep, train.clock.now()) == []


def test_logs_are_listed_once_however_many_attempts(train: QueuedTrain, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir, listed = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(Path(path)) or scandir(path))
    assert plan(train.run, KEEP, train.clock.now())
    assert listed.count(train.run.logs) == listed.count(train.run.path / "attempts") - 1 == 1


def test_packed_files_are_deleted_only_where_the_setting_says_so(train: QueuedTrain) -> None:
    pack_all(train)
    others = {
        train.run.logs / "mine.tar.gz",
        train.run.logs / f"{RUNNING}.tar.gz",
        train.run.attempt(OLD).path / "a.tar.gz",
    }
    for path in others:
        write(path, train)
    train.clock.time += timedelta(days=400)
    pack_all(train, KeepTable(attempts=2))
    assert find_archive(train.run.logs / OLD)
    pack_all(train, KeepTable(attempts=2, delete_days=300))
    assert set(train.run.path.rglob("*.tar.gz")) == others


def test_links_and_other_entries_are_neither_followed_nor_removed(train: QueuedTrain, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("x")
    logs, attempt = train.run.logs / OLD, train.run.attempt(OLD)
    (logs / "link").symlink_to(secret / "key")
    (logs / "directory").symlink_to(secret)
    os.mkfifo(logs / "pipe")
    (attempt.path / "step-times").symlink_to(secret)
    pack_all(train)
    assert sorted(path.name for path in logs.iterdir()) == ["directory", "link", "pipe"]
    assert (secret / "key").exists()
    assert b"x" not in contents(train.run.attempt_logs(OLD)).values()
    assert not find_archive(attempt.path / "step-times")


def test_linked_logs_are_left_alone(train: QueuedTrain, tmp_path: Path) -> None:
    train.run.logs.rename(tmp_path / "elsewhere")
    train.run.logs.symlink_to(tmp_path / "elsewhere")
    assert plan(train.run, KEEP, train.clock.now()) == []


def test_file_that_changed_since_stays(train: QueuedTrain) -> None:
    carry_out(plan(train.run, KEEP, train.clock.now()), train.run, train.clock)
    changed = train.run.logs / OLD / "node001-0.log"
    changed.write_bytes(LINES * 2)
    pack_all(train)
    assert contents(train.run.logs / OLD) == {changed.name: LINES * 2}


def test_damaged_archive_costs_no_original(train: QueuedTrain) -> None:
    carry_out(plan(train.run, KEEP, train.clock.now()), train.run, train.clock)
    archive = find_archive(train.run.logs / OLD)
    assert archive
    archive.write_bytes(archive.read_bytes()[:-6])
    with pytest.raises(OSError, match=ARCHIVE_SUFFIX):
        pack_all(train)
    assert len(contents(train.run.logs / OLD)) == 2
    with pytest.raises(RunDirError, match=ARCHIVE_SUFFIX):
        train.run.attempt_logs(OLD)


def test_private_files_stay_private(train: QueuedTrain) -> None:
    (train.run.attempt(OLD).repro / "env.json").chmod(0o600)
    pack_all(train)
    modes = {path.name: path.stat().st_mode & 0o777 for path in train.run.attempt(OLD).path.glob("*.gz")}
    assert modes["repro.tar.gz"] == 0o600
    assert modes["evidence.tar.gz"] == 0o644


def killed_pass(train: QueuedTrain, left: int) -> bool:
    """Carry out a pass in a process that dies at its `left`-th change of a file; return whether it died."""
    if not (pid := os.fork()):

        def die(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_WRONLY
            left -= is_write or event in {"os.rename", "os.remove", "os.rmdir", "os.utime", "os.truncate"}
            if left <= 0:
                os._exit(9)

        sys.addaudithook(die)
        carry_out(plan(train.run, KEEP, train.clock.now()), train.run, train.clock)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def test_killed_at_any_change_nothing_is_lost(train: QueuedTrain) -> None:
    before, kills, place = read_old(train.run), 0, train.run.path
    for copy in (place.with_name("unpacked"), place.with_name("packed")):
        shutil.copytree(place, copy)
        for left in range(1, 60):
            shutil.rmtree(place)
            shutil.copytree(copy, place)
            if not killed_pass(train, left):
                break
            kills += 1
            assert read_old(train.run) == before, (copy.name, left)
            pack_all(train)
            assert read_old(train.run) == before, (copy.name, left)
            assert [path.name for path in train.run.logs.iterdir() if OLD in path.name] == [f"{OLD}.tar.gz"]
    assert kills > 20


def test_table_of_the_train_replaces_the_one_of_the_site(train: QueuedTrain) -> None:
    site = SiteSettings(root="/", keep=KeepTable(attempts=3))
    assert read_keep_table(train.run, site).attempts == 3
    train.run.config.write_text(train.run.config.read_text() + '\n[keep]\npack_days = "7h"\n')
    assert read_keep_table(train.run, site) == KeepTable(pack_days=7 / 24)


@pytest.mark.root
def test_archive_of_another_user_decides_nothing(train: QueuedTrain) -> None:
    before, logs = read_old(train.run), train.run.logs / OLD
    archive, half_written = (logs.with_name(name) for name in (f"{OLD}.tar.gz", f".{OLD}.tar.gz.packing"))
    pack(logs, [])
    half_written.touch()
    for planted in (archive, half_written):
        os.chown(planted, NOBODY, NOBODY)
    assert read_old(train.run) == before
    carry_out(plan(train.run, KEEP, train.clock.now()), train.run, train.clock)
    assert find_archive(logs)
    for path in (archive, logs.parent):
        os.chown(path, NOBODY, NOBODY)
    train.clock.sleep(2 * keep_files.READ_S)
    carry_out(plan(train.run, KEEP, train.clock.now()), train.run, train.clock)
    assert len(contents(logs)) == 2


@pytest.mark.root
@pytest.mark.parametrize(("size", "time"), [(4 << 20, "1"), (1, "nan"), (None, "1")], ids=["bomb", "odd time", "empty"])
def test_archive_of_another_user_is_bounded(
    train: QueuedTrain, monkeypatch: pytest.MonkeyPatch, size: int | None, time: str
) -> None:
    monkeypatch.setattr(archive_module, "SMALL_BYTES", 1 << 20)
    member, path = tarfile.TarInfo(f"{OLD}/a.log"), train.run.logs / f"{OLD}.tar.gz"
    member.size, member.pax_headers = size or 0, {"mtime": time}
    with tarfile.open(path, "w:gz") as tar:
        if size:
            tar.addfile(member, io.BytesIO(bytes(size)))
    for place in (path, train.run.logs):
        os.chown(place, NOBODY, NOBODY)
    with pytest.raises(RunDirError, match=ARCHIVE_SUFFIX):
        train.run.attempt_logs(OLD)


def test_archive_that_opsctl_cannot_have_made_is_refused(train: QueuedTrain, tmp_path: Path) -> None:
    link, header = tarfile.TarInfo(f"{OLD}/link"), tarfile.TarInfo("header")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(train.run.logs / f"{OLD}.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(f"{'../' * 40}{tmp_path}/planted"))
        tar.addfile(link)
    assert contents(train.run.attempt_logs(OLD).parent) == {}
    assert not (tmp_path / "planted").exists()
    header.type, header.size = tarfile.XHDTYPE, MAX_READ_BYTES + 1
    with tarfile.open(train.run.logs / f"{OLD}.tar.gz", "w:gz") as tar:
        tar.addfile(header, io.BytesIO(bytes(header.size)))
    with pytest.raises(RunDirError) as caught:
        train.run.attempt_logs(OLD)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG


def call(train: QueuedTrain, *words: str) -> str:
    site = train.run.path.parent / "site.toml"
    site.write_text(f'root = "{train.run.path.parent}"\ntrust_parents = true\n[keep]\nattempts = 1\n')
    return CliRunner(catch_exceptions=False).invoke(cli, ["--site", str(site), *words]).stdout


def test_dry_run_names_what_is_due_and_changes_nothing(train: QueuedTrain) -> None:
    before = contents(train.run.path)
    fields = parse_json(call(train, "cron", "prune", "--dry-run", "--json"))
    assert {Path(step["path"]).name for step in fields["steps"]} == {OLD, "evidence", "flight", "repro"}
    assert {step["verb"] for step in fields["steps"]} == {"pack"}
    assert contents(train.run.path) == before
    call(train, "cron", "prune")
    assert find_archive(train.run.logs / OLD)
