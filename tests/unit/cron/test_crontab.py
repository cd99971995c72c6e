"""What is found in a crontab and in the directories beside it."""

from __future__ import annotations

import os
from pathlib import Path

from opsctl.cron.cron_context import CronContext
from opsctl.cron.crontab import printable, shipped
from tests.support.cron_context import CronWorld


def ids(cron: CronContext) -> list[str]:
    return [entry.id for entry in cron.schedule().entries]


def test_a_crontab_has_comments_settings_macros_and_five_fields(world: CronWorld) -> None:
    world.crontab('# a comment\n\nMAILTO = "me"\n*/5 * * * *  echo one;  echo two\n@daily\techo three\n')
    first, second = world.cron.schedule().entries
    assert (first.id, first.when.text, dict(first.env)) == ("echo one;  echo two", "*/5 * * * *", {"MAILTO": "me"})
    assert first.argv == ("/bin/sh", "-c", "echo one;  echo two")
    assert (second.id, second.when.text) == ("echo three", "@daily")


def test_a_line_that_makes_no_sense_is_told_and_the_others_stay(world: CronWorld) -> None:
    world.crontab("* * * *\n61 * * * * x\n* * * * * true\nCRON_TZ=UTC\n")
    schedule, path = world.cron.schedule(), world.directory / "crontab"
    assert [entry.id for entry in schedule.entries] == ["true"]
    assert schedule.problems == (
        f"{path}:1: '* * * *': needs five fields and a command",
        f"{path}:2: Error validating expression '61': the last value (61) is higher than the maximum value (59)",
        f"{path}:4: CRON_TZ is not supported; set `time_zone` in [cron] of site.toml",
    )


def test_a_crontab_of_binary_rubbish_does_not_hide_the_drop_ins(world: CronWorld) -> None:
    (world.directory / "crontab").write_bytes(b"\xff\xfe\x00* * * * *")
    world.drop_in("cron.hourly/mine", "#!/bin/sh\n")
    assert ids(world.cron) == ["cron.hourly/mine"]
    assert len(world.cron.schedule().problems) == 1


def test_an_empty_directory_is_nothing_to_do_and_a_missing_one_is_told(world: CronWorld) -> None:
    for name in ("cron.hourly", "cron.daily"):
        (world.directory / name).mkdir()
    assert world.cron.schedule().entries == world.cron.schedule().problems == ()
    world.settings["directory"] = "/nonexistent"
    assert world.cron.schedule().problems == ("/nonexistent: no such directory",)


def test_what_people_and_editors_leave_lying_about_is_no_script(world: CronWorld) -> None:
    for name in (".hidden", "mine~", "mine.bak", "README.md", "notes.txt", "off.disabled"):
        world.drop_in(f"cron.daily/{name}", "#!/bin/sh\n")
    (world.directory / "cron.daily" / "directory").mkdir()
    assert ids(world.cron) == []


def test_one_command_twice_is_run_once_and_told(world: CronWorld) -> None:
    world.crontab("1 * * * * true\n2 * * * * true\n")
    assert ids(world.cron) == ["true"]
    assert world.cron.schedule().problems == (
        f"{world.directory / 'crontab'}: 'true' is defined twice; only the first runs",
    )


def test_a_name_of_any_bytes_has_a_printable_id(world: CronWorld) -> None:
    hostile = (b"-rf", b"a;rm b", b"line\nfeed", b"\xff\x00"[:1], "tür".encode(), b"\x1b[31m")
    directory = world.directory / "cron.hourly"
    directory.mkdir()
    for name in hostile:
        (directory / os.fsdecode(name)).write_text("#!/bin/sh\n")
    assert sorted(ids(world.cron)) == sorted(
        f"cron.hourly/{name}" for name in ("-rf", "a;rm b", r"line\nfeed", r"\xff", "tür", r"\x1b[31m")
    )
    assert all(id.isprintable() and id.encode() for id in ids(world.cron))
    assert printable("plain text") == "plain text"


def test_what_is_shipped_makes_sense(world: CronWorld) -> None:
    world.settings["directory"] = ""
    assert world.cron.schedule().problems == ()
    assert ids(world.cron) == [
        "opsctl watch --once",
        "opsctl cron prune",
        "cron.hourly/publish",
        "cron.daily/fs-report",
    ]
    assert all(not entry.refused for entry in world.cron.schedule().entries)
    assert Path(shipped(), "crontab").is_file()
