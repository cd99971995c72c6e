"""Read the schedule: the lines of a crontab and the files of the drop-in directories next to it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path

from opsctl.cron.cron_times import When, parse_when

DROP_INS = {"cron.hourly": "0 * * * *", "cron.daily": "0 5 * * *", "cron.weekly": "0 5 * * 1"}
"""Drop-in directories and their times."""
NOT_SCRIPTS = re.compile(r"\..*|.*(~|\.bak|\.disabled|\.md|\.orig|\.swp|\.txt)", re.DOTALL)
"""Names of files that are not scripts, such as editor backups."""
SETTING = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CronEntry:
    """One periodic job."""

    id: str
    """Constant over ticks, printable, without line feeds: the crontab's command, or `cron.daily/NAME`."""
    when: When
    source: Path
    """The file that defines the entry; other users must not be able to write this file."""
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the crontab sets."""
    is_batch: bool = False
    """Whether the entry is a batch script for sbatch."""
    refused: str = ""
    """Why the entry cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    entries: tuple[CronEntry, ...]
    problems: tuple[str, ...]
    """Invalid lines and unreadable files; the other entries run nevertheless."""


def shipped() -> Path:
    """Return the directory of the default crontab: in a checkout, a link to the repository's `cron/`."""
    return Path(__file__).parent / "crontabs"


def read_schedule(directory: Path, zone: tzinfo) -> Schedule:
    """Read the crontab in `directory`, then the drop-in directories. Missing files are allowed."""
    entries: dict[str, CronEntry] = {}
    problems: list[str] = []
    if not directory.is_dir():
        return Schedule(entries=(), problems=(f"{directory}: no such directory",))
    for entry in (*_crontab(directory / "crontab", zone), *_drop_ins(directory, zone)):
        if isinstance(entry, str):
            problems.append(entry)
        elif entry.id in entries:
            problems.append(f"{entry.source}: {entry.id!r} is defined twice; only the first runs")
        else:
            entries[entry.id] = entry
    return Schedule(entries=tuple(entries.values()), problems=tuple(problems))


def _crontab(path: Path, zone: tzinfo) -> Iterator[CronEntry | str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        yield f"{path}: {error}"
        return
    env: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        if match := SETTING.fullmatch(line):
            if match[1] == "CRON_TZ":
                yield f"{path}:{number}: CRON_TZ is not supported; set `time_zone` in [cron] of site.toml"
            env[match[1]] = match[2].strip("\"'") if match[2][:1] in ("'", '"') else match[2]
            continue
        try:
            yield _line(path, line, dict(env), zone)
        except ValueError as error:
            yield f"{path}:{number}: {error}"


def _line(path: Path, line: str, env: dict[str, str], zone: tzinfo) -> CronEntry:
    count = 1 if line.startswith("@") else 5
    words = line.split(maxsplit=count)
    if len(words) <= count:
        raise ValueError(f"{line!r:.80}: needs {'a macro' if count == 1 else 'five fields'} and a command")
    command = words[count]
    when = parse_when(" ".join(words[:count]), zone)
    shell = env.pop("SHELL", "/bin/sh")
    return CronEntry(id=printable(command), when=when, source=path, argv=(shell, "-c", command), env=env)


def _drop_ins(directory: Path, zone: tzinfo) -> Iterator[CronEntry | str]:
    for name, times in DROP_INS.items():
        when = parse_when(times, zone)
        try:
            files = sorted((directory / name).iterdir())
        except FileNotFoundError:
            continue
        except OSError as error:
            yield f"{directory / name}: {error.strerror}"
            continue
        for path in files:
            if path.is_dir() or NOT_SCRIPTS.fullmatch(path.name):
                continue
            yield _drop_in(path, when)


def _drop_in(path: Path, when: When) -> CronEntry:
    is_batch = path.name.endswith(".slurm")
    refused = "" if is_batch or os.access(path, os.X_OK) else "not executable: chmod +x it"
    argv = ("sbatch", "--parsable", str(path)) if is_batch else (str(path),)
    return CronEntry(
        id=printable(f"{path.parent.name}/{path.name}"),
        when=when,
        source=path,
        argv=argv,
        is_batch=is_batch,
        refused=refused,
    )


def printable(text: str) -> str:
    """Return the text escaped for a terminal and a ledger: file names may hold any bytes."""
    text = os.fsencode(text).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_due(entry: CronEntry, since: datetime, now: datetime, started: datetime | None = None) -> bool:
    """Return whether one or more of the entry's times have passed: a tick runs an entry at most once.

    If the last run `started` after `since`, the clock of that run was ahead: the run was early. The run counts for
    the next time of the entry. If several times lie between `since` and `started`, the run counts for none.
    """
    next_time = entry.when.after(since)
    if next_time and started and next_time <= started:
        second_time = entry.when.after(next_time)
        if second_time is None or second_time > started:
            next_time = second_time
    return next_time is not None and next_time <= now
