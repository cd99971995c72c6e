"""Space, inodes, quotas and forecasts: pure judgements of figures, and real file systems where they are measured."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from opsctl.errors import ConfigError
from opsctl.host import disk_usage
from opsctl.host.disk_usage import MeasurementFailed, Space
from opsctl.host.system import SystemRunner
from opsctl.model import Finding, Level
from opsctl.settings.loader import SiteSettings, parse
from opsctl.settings.watch import Filesystem
from opsctl.units import format_size, parse_size
from opsctl.watchdogs.fill_rate import Growth, measure_observed
from opsctl.watchdogs.fs_quota import FilesystemObservation, FsQuota
from tests.support.watch_context import T0, Stage

TIB = 1 << 40
Minutes = Callable[[float], timedelta]


def judged(space: Space | None, *, now: datetime = T0, **known: Any) -> tuple[Level, str]:
    limits = {each: known.pop(each) for each in list(known) if each in Filesystem.model_fields}
    filesystem = Filesystem(name="scratch", path="/scratch", **limits)
    [finding] = FsQuota().judge(FilesystemObservation(filesystem=filesystem, space=space, **known), now)
    return finding.level, finding.summary.removeprefix("scratch (/scratch): ")


def growth(size: int = 0, inodes: int = 0, *, replaces: bool = False) -> Growth:
    return Growth(train="gpt", size=size, inodes=inodes, every_s=3 * 3600, newest=T0, replaces=replaces)


@pytest.mark.parametrize(
    ("percent", "level"),
    [(84.99, Level.OK), (85, Level.WARNING), (94.9, Level.WARNING), (95, Level.CRITICAL), (101, Level.CRITICAL)],
)
def test_bytes_and_inodes_are_held_against_the_same_limits(percent: float, level: Level) -> None:
    assert judged(Space(used=int(percent * 1000), limit=100_000))[0] is level
    assert judged(Space(inodes_used=int(percent * 1000), inodes_limit=100_000))[0] is level
    assert judged(Space(percent=percent))[0] is level


def test_it_says_the_figures_and_the_limit() -> None:
    assert judged(Space(used=int(1.75 * TIB), limit=2 * TIB)) == (
        Level.WARNING,
        "87.50% bytes usage, warning at 85% (1.75 TiB of 2 TiB)",
    )


def test_where_eighty_percent_are_reliable_eighty_is_full() -> None:
    assert judged(Space(used=78 * TIB, limit=100 * TIB), reliable_percent=80) == (
        Level.CRITICAL,
        "97.50% bytes usage, critical at 95% (78 TiB of 100 TiB, of which 80 % are reliable)",
    )


def test_what_has_to_stay_free_may_be_said_in_bytes() -> None:
    level, text = judged(
        Space(used=900 * TIB, limit=990 * TIB), warning_percent=99, critical_percent=99, free=100 * TIB
    )
    assert (level, text.endswith("90 TiB left, needs 100 TiB")) == (Level.CRITICAL, True)


def test_a_checkpoint_of_2_3_tib_every_three_hours_fills_20_tib_in_a_day() -> None:
    size = int(2.3 * TIB)
    level, text = judged(Space(used=80 * TIB, limit=100 * TIB), trains=(growth(size),))
    assert (level, text) == (Level.WARNING, "out of bytes in 26 h at 18.4 TiB a day")
    assert judged(Space(used=84 * TIB, limit=100 * TIB), trains=(growth(size), growth(size)))[0] is Level.CRITICAL


def test_inodes_run_out_too() -> None:
    space = Space(used=1, limit=100 * TIB, inodes_used=2_000_000, inodes_limit=3_000_000)
    level, text = judged(space, trains=(growth(1, 100_000),))
    assert (level, text) == (Level.WARNING, "out of inodes in 30 h at 800,000 a day")


def test_a_train_that_removes_as_many_as_it_writes_fills_nothing() -> None:
    assert judged(Space(used=80 * TIB, limit=100 * TIB), trains=(growth(3 * TIB, replaces=True),))[0] is Level.OK


def test_what_others_write_counts_where_it_is_more() -> None:
    assert (
        judged(Space(used=80 * TIB, limit=100 * TIB), observed_rate=TIB / 3600)[1]
        == "out of bytes in 20 h at 24 TiB a day"
    )


def test_a_rate_needs_six_hours() -> None:
    assert measure_observed([[0, 0], [3600, 100]]) is None
    assert measure_observed([[0, 0], [36000, 7200]]) == 0.2
    assert measure_observed([[0, 100], [36000, 50]]) is None


def test_a_figure_that_is_old_is_unknown_and_an_old_one_that_is_bad_is_bad(minutes: Minutes) -> None:
    level, text = judged(Space(used=1, limit=9, at=T0 - minutes(90)))
    assert (level, text) == (Level.UNKNOWN, "scratch: the figures are of 2026-01-04 23:30 UTC, 1.5 h ago")
    assert judged(Space(used=9, limit=9, at=T0 - minutes(90)))[0] is Level.CRITICAL


def test_figures_that_do_not_move_while_checkpoints_are_written_are_stale(minutes: Minutes) -> None:
    level, text = judged(Space(used=1, limit=9), unmoved_since=T0 - minutes(90))
    assert (level, text.endswith("have not moved for 1.5 h, though checkpoints were written")) == (Level.UNKNOWN, True)


def test_no_figure_at_all_is_unknown() -> None:
    assert judged(None, problem="quota: not found") == (Level.UNKNOWN, "scratch: quota: not found")
    assert judged(Space(used=3))[0] is Level.UNKNOWN


# --- measuring


def test_statvfs_says_what_df_says(tmp_path: Path) -> None:
    ours = disk_usage.read_statvfs(tmp_path)
    df = disk_usage.read(Filesystem(name="x", path=str(tmp_path), by="df"), SystemRunner(), keep=tmp_path, now=T0)
    assert ours.limit is not None and df.limit is not None and ours.used is not None and df.used is not None
    assert abs(ours.limit - df.limit) + abs(ours.used - df.used) < 0.01 * ours.limit
    assert (df.inodes_limit is None) == (ours.inodes_limit is None)


@pytest.mark.parametrize("text", ["", "Used Avail\n", "Used Avail IUsed IFree\n1 2\n", "a b c d\n1 2 3 4\n5 6 7 8\n"])
def test_a_df_that_says_something_else_is_no_figure(text: str) -> None:
    with pytest.raises(MeasurementFailed):
        disk_usage.read_df(text)


def test_a_file_system_without_inodes_has_no_limit_of_them() -> None:
    assert disk_usage.read_df("Used Avail IUsed IFree\n100 300 - -\n") == Space(used=100, limit=400)


IDRQUOTA = """WORK: 4.2T / 5.0T (84.00%)
INODE: 461k / 500k (92.30%)"""
PATTERN = r"\((?P<percent>[\d.]+)%\)(?s:.*)\((?P<inodes_percent>[\d.]+)%\)"


def quota(text: str, pattern: str, tmp_path: Path) -> Space:
    command = (sys.executable, "-c", f"print({text!r})")
    filesystem = Filesystem(name="work", path="/work", by="command", command=command, pattern=pattern)
    return disk_usage.read(filesystem, SystemRunner(), keep=tmp_path, now=T0)


def test_a_quota_command_that_says_percentages(tmp_path: Path) -> None:
    assert quota(IDRQUOTA, PATTERN, tmp_path) == Space(percent=84.0, inodes_percent=92.3)


def test_a_quota_command_that_says_sizes_and_when(tmp_path: Path) -> None:
    pattern = r"(?P<used>\S+) of (?P<limit>\S+), files (?P<inodes_used>\d+)/(?P<inodes_limit>\d+) at (?P<at>\S+)"
    assert quota("4.5T of 5TiB, files 461/500 at 2026-01-05T00:50:00+00:00", pattern, tmp_path) == Space(
        used=int(4.5 * TIB),
        limit=5 * TIB,
        inodes_used=461,
        inodes_limit=500,
        at=datetime(2026, 1, 5, 0, 50, tzinfo=UTC),
    )


@pytest.mark.parametrize("text", ["", "quota: server not responding", "WORK: lots (many%) (all%)"])
def test_a_quota_command_that_says_something_else_is_no_figure(tmp_path: Path, text: str) -> None:
    with pytest.raises(MeasurementFailed, match="the pattern finds nothing in"):
        quota(text, PATTERN, tmp_path)


def test_a_quota_command_that_is_missing_or_fails_is_unknown(stage: Stage) -> None:
    table = {"name": "work", "path": "/", "by": "command", "pattern": "(?P<percent>.*)"}
    missing = Filesystem(**table, command=("no-such-quota",))
    assert stage.judge("fs_quota", missing).summary == "work: no-such-quota: is not on PATH"
    failing = Filesystem(**table, command=("sh", "-c", "echo who are you >&2; exit 3"))
    assert stage.judge("fs_quota", failing).summary == "work: sh failed (3): who are you"


def measure(stage: Stage, filesystem: Filesystem) -> Finding:
    """What is found once du has measured, which it does in the background, with the real clock."""
    stage.clock.time = datetime.now(UTC)
    path = disk_usage.measure(
        filesystem.path,
        keep=stage.place / ".site/watch/fs_quota",
        name=filesystem.name,
        now=stage.clock.time,
        every=timedelta(days=1),
    )
    until = time.monotonic() + 250  # it is nice: on a busy machine it comes last
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    stage.clock.time = datetime.now(UTC)
    return stage.judge("fs_quota", filesystem)


def test_du_measures_in_the_background_and_names_the_biggest(stage: Stage) -> None:
    place = stage.place / "space $x"
    (place / "big").mkdir(parents=True)
    (place / "small").mkdir()
    (place / "big/model").write_bytes(bytes(8 << 20))
    (place / "small/model").write_bytes(bytes(1 << 20))
    os.chown(place / "small", 12345, -1) if os.geteuid() == 0 else None
    filesystem = Filesystem(name="project", path=str(place), by="du", limit=10 << 20, inode_limit=100)
    assert stage.judge("fs_quota", filesystem).level in (
        Level.UNKNOWN,
        Level.WARNING,
    )  # du may be quicker than the look
    finding = measure(stage, filesystem)
    assert finding.level is Level.WARNING
    assert re.search(r"90\.\d\d% bytes usage, warning at 85% \(9[\d.]* MiB of 10 MiB\)", finding.summary)
    # Only root can give a directory to a second owner. Directories take some KiB or none.
    owners = ["8 MiB, 2 inodes", "1 MiB, 2 inodes"] if os.geteuid() == 0 else ["9 MiB, 4 inodes"]
    shown = [re.search(r": (\d+)[\d.]*( MiB, \d inodes), most in", line).expand(r"\1\2") for line in finding.evidence]
    assert shown == owners


def test_two_du_are_not_begun_at_once(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "du-x.running").touch()
    before = set(psutil.Process().children())
    disk_usage.measure(str(tmp_path / "x"), keep=tmp_path, name="x", now=datetime.now(UTC), every=timedelta(days=1))
    assert set(psutil.Process().children()) <= before  # one of another test may have ended meanwhile


# --- growth of a train


def saved(stage: Stage, count: int, size: int = 1000) -> None:
    """Checkpoints, one hour apart, the newest at T0."""
    for number in range(count):
        place = stage.run.checkpoints / f"step{number}"
        place.mkdir()
        (place / "model").write_bytes(bytes(size))
        at = T0.timestamp() - 3600 * (count - 1 - number)
        os.utime(place / "model", (at, at))
        os.utime(place, (at, at))


def test_a_train_s_checkpoints_make_the_forecast(stage: Stage) -> None:
    saved(stage, 3)
    stage.start_job()
    finding = stage.judge("fs_quota", Filesystem(name="root", path=str(stage.place)))
    assert finding.evidence == ("gpt: 1000 B in 2 inodes every 1.0 h",)


def test_a_train_that_is_not_queued_fills_nothing(stage: Stage) -> None:
    saved(stage, 3)
    assert stage.judge("fs_quota", Filesystem(name="root", path=str(stage.place))).evidence == ()


def test_nor_does_one_that_keeps_only_the_last(stage: Stage) -> None:
    stage.run.trainer_config.write_text(json.dumps({"checkpoint": {"every": 10, "keep_last": 2}}))
    stage.start_job()
    stage.steps(1, 30)
    for step in (10, 20):
        place = stage.run.checkpoints / f"step-{step:07d}"
        place.mkdir()
        (place / "COMPLETE").write_text("x")
    assert stage.judge("fs_quota", Filesystem(name="root", path=str(stage.place))).evidence == ()


def test_figures_that_stand_still_are_stale_only_if_something_was_written_since(stage: Stage, minutes: Minutes) -> None:
    saved(stage, 3)
    stage.start_job()
    same = Filesystem(name="q", path=str(stage.place), by="command", command=("echo", "7 %"), pattern=r"(?P<percent>7)")
    assert stage.judge("fs_quota", same).level is Level.OK
    assert stage.judge("fs_quota", same, after=minutes(90)).level is Level.OK
    place = stage.run.checkpoints / "step3"
    place.mkdir()
    at = stage.clock.now().timestamp()
    os.utime(place, (at, at))
    finding = stage.judge("fs_quota", same)
    assert (finding.level, "have not moved for 1.5 h" in finding.summary) == (Level.UNKNOWN, True)


# --- settings


def refused(**table: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(SiteSettings, {"root": "/x", "filesystem": [{"name": "s", "path": "/s", **table}]}, "site.toml")
    return list(caught.value.problems)


def test_settings_that_cannot_be_meant_are_refused() -> None:
    assert refused(by="du") == ["[filesystem] 0: by = du needs `limit` or `inode_limit`: du does not report a limit"]
    assert refused(by="command") == ["[filesystem] 0: by = command needs `command` and `pattern`"]
    assert refused(pattern="(?P<usd>.)") == ["[filesystem] 0: pattern: no such group: usd"]
    assert refused(critical_percent=50) == ["[filesystem] 0: critical_percent is below warning_percent"]
    assert refused(by="du", limit="lots") == [
        "[filesystem.0] limit: 'lots' is not a size, such as 400T, 2.5GiB or a number"
    ]


@pytest.mark.parametrize(
    ("text", "size"), [("400T", 400 * TIB), ("2.5 GiB", 5 << 29), ("3000000", 3_000_000), ("1k", 1024), ("7B", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_sizes_are_shown_short() -> None:
    assert [format_size(each) for each in (0, 1023, 1024, 2.3 * TIB, 5e18)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "2.3 TiB",
        "4.34 EiB",
    ]


def test_a_directory_that_is_gone_is_said_in_words(stage: Stage) -> None:
    finding = stage.judge("fs_quota", Filesystem(name="scratch", path="/gone"))
    assert (finding.level, finding.summary) == (Level.UNKNOWN, "scratch: /gone: No such file or directory")
