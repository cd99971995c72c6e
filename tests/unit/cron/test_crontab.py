"""Entries of a crontab and of the cron.* directories."""

import os
from pathlib import Path

from opsctl.cron.cron_context import CronContext
from opsctl.cron.crontab import printable, shipped
from tests.support.cron_context import CronSite


def ids(cron: CronContext) -> list[str]:
    return [entry.id for entry in cron.schedule().entries]


def test_crontab_has_comments_settings_and_entries(cron_site: CronSite) -> None:
    cron_site.crontab(
        '# a comment\n\nMAILTO = ""\nEDITOR = "vi"\n*/5 * * * *  echo one;  echo two\n@daily\techo three\n'
    )
    first, second = cron_site.cron.schedule().entries
    assert (first.id, first.when.text, dict(first.env)) == (
        "echo one;  echo two",
        "*/5 * * * *",
        {"MAILTO": "", "EDITOR": "vi"},
    )
    assert first.argv == ("/bin/sh", "-c", "echo one;  echo two")
    assert (second.id, second.when.text) == ("echo three", "@daily")


def test_invalid_line_is_reported_and_others_stay(cron_site: CronSite) -> None:
    cron_site.crontab("* * * *\n61 * * * * x\n* * * * * true\nCRON_TZ=UTC\nMAILTO=me\n* * * * * date +%F\n")
    schedule, path = cron_site.cron.schedule(), cron_site.directory / "crontab"
    assert [entry.id for entry in schedule.entries] == ["true"]
    assert schedule.problems == (
        f"{path}:1: '* * * *': needs five fields and a command",
        f"{path}:2: Error validating expression '61': the last value (61) is higher than the maximum value (59)",
        f"{path}:4: CRON_TZ is not supported; set `time_zone` in [cron] of site.toml",
        f"{path}:5: MAILTO is not supported; opsctl mails no output: opsctl cron status shows how entries ended",
        f"{path}:6: cron takes % for a line end, and what follows for standard input; write \\% for a percent sign",
    )


def test_binary_crontab_does_not_hide_the_scripts(cron_site: CronSite) -> None:
    (cron_site.directory / "crontab").write_bytes(b"\xff\xfe\x00* * * * *")
    cron_site.drop_in("cron.hourly/mine", "#!/bin/sh\n")
    assert ids(cron_site.cron) == ["cron.hourly/mine"]
    assert len(cron_site.cron.schedule().problems) == 1


def test_empty_directory_is_valid_and_missing_one_is_not(cron_site: CronSite) -> None:
    for name in ("cron.hourly", "cron.daily"):
        (cron_site.directory / name).mkdir()
    assert cron_site.cron.schedule().entries == cron_site.cron.schedule().problems == ()
    cron_site.settings["directory"] = "/nonexistent"
    assert cron_site.cron.schedule().problems == ("/nonexistent: no such directory",)


def test_backups_and_hidden_files_are_no_scripts(cron_site: CronSite) -> None:
    for name in (".hidden", "mine~", "mine.bak", "README.md", "notes.txt", "off.disabled"):
        cron_site.drop_in(f"cron.daily/{name}", "#!/bin/sh\n")
    (cron_site.directory / "cron.daily" / "directory").mkdir()
    assert ids(cron_site.cron) == []


def test_every_line_runs_as_in_cron(cron_site: CronSite) -> None:
    cron_site.crontab("1 * * * * true\n2 * * * * true\n3 * * * * date +\\%F\n")
    assert ids(cron_site.cron) == ["true", "true #2", "date +%F"]
    assert cron_site.cron.schedule().problems == ()
    assert cron_site.cron.schedule().entries[2].argv == ("/bin/sh", "-c", "date +%F")


def test_file_name_of_any_bytes_has_a_printable_id(cron_site: CronSite) -> None:
    hostile = (b"-rf", b"a;rm b", b"line\nfeed", b"\xff\x00"[:1], "tür".encode(), b"\x1b[31m")
    directory = cron_site.directory / "cron.hourly"
    directory.mkdir()
    for name in hostile:
        (directory / os.fsdecode(name)).write_text("#!/bin/sh\n")
    assert sorted(ids(cron_site.cron)) == sorted(
        f"cron.hourly/{name}" for name in ("-rf", "a;rm b", r"line\nfeed", r"\xff", "tür", r"\x1b[31m")
    )
    assert all(id.isprintable() and id.encode() for id in ids(cron_site.cron))
    assert printable("plain text") == "plain text"


def test_shipped_crontab_is_valid(cron_site: CronSite) -> None:
    cron_site.settings["directory"] = ""
    assert cron_site.cron.schedule().problems == ()
    assert ids(cron_site.cron) == [
        "opsctl watch --once",
        "opsctl cron prune",
        "cron.hourly/publish",
        "cron.daily/fs-report",
    ]
    assert all(not entry.refused for entry in cron_site.cron.schedule().entries)
    assert Path(shipped(), "crontab").is_file()
