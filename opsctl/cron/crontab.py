"""Read the schedule: the lines of a crontab and the files of the drop-in directories next to it."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from apscheduler.triggers.cron import CronTrigger

from opsctl.base.tables import read_package_table
from opsctl.slurm.commands import list_argv
from opsctl.state.files import MAX_SETTINGS_BYTES, read_bounded

DROP_INS = {"cron.hourly": "0 * * * *", "cron.daily": "0 5 * * *", "cron.weekly": "0 5 * * 1"}
"""Drop-in directories and their times."""
NOT_SCRIPTS = re.compile(r"\..*|.*(~|\.bak|\.disabled|\.md|\.orig|\.swp|\.txt)", re.DOTALL)
"""Names of files that are not scripts, such as editor backups."""
SETTING = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.*)", re.ASCII)
MACROS: Mapping[str, str] = read_package_table("cron/macros.toml")
UNSUPPORTED = {
    "CRON_TZ": "set `time_zone` in [cron] of site.toml",
    "MAILTO": "opsctl mails no output: opsctl cron status shows how entries ended",
}
PERCENT = re.compile(r"(?<!\\)%")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
DAY = re.compile(r"(?:\*|([0-7]|[a-z]{3})(?:-([0-7]|[a-z]{3}))?)(?:/([1-9]\d?))?", re.ASCII | re.IGNORECASE)
MAX_CHARS = 400
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class When:
    """The times of one crontab line."""

    text: str
    triggers: tuple[CronTrigger, ...]
    """The times are the union of the triggers."""
    is_daily: bool
    """Whether hours are given: then a repeated hour at the end of summer time counts once."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time after `moment`; None if there is none, such as for 30 February."""
        times = [self._next(trigger, moment) for trigger in self.triggers]
        return min((time for time in times if time), default=None)

    def _next(self, trigger: CronTrigger, moment: datetime) -> datetime | None:
        # In UTC: arithmetic on local times loses which of two equal hours is meant.
        time: datetime | None = trigger.get_next_fire_time(None, moment.astimezone(UTC) + INSTANT)
        while time and time.fold and self.is_daily:
            time = trigger.get_next_fire_time(None, time.astimezone(UTC) + INSTANT)
        return time


@dataclass(frozen=True, slots=True, kw_only=True)
class CronEntry:
    id: str
    """Constant over ticks, printable, without line feeds: the crontab's command, or `cron.daily/NAME`."""
    when: When
    source: Path
    """The file that defines the entry; other users must not be able to write this file."""
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the crontab sets."""
    is_batch: bool = False
    """Whether the entry is a batch script."""
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
    counts, problems = Counter[tuple[str, ...]](), list[str]()
    if not directory.is_dir():
        return Schedule(entries=(), problems=(f"{directory}: no such directory",))
    for entry in (*_crontab(directory / "crontab", zone), *_drop_ins(directory, zone)):
        if isinstance(entry, str):
            problems.append(entry)
            continue
        counts[entry.argv] += 1  # as in cron, every line runs
        id = f"{entry.id} #{counts[entry.argv]}" if counts[entry.argv] > 1 else entry.id
        entries[id] = replace(entry, id=id)
    return Schedule(entries=tuple(entries.values()), problems=tuple(problems))


def _crontab(path: Path, zone: tzinfo) -> Iterator[CronEntry | str]:
    try:
        lines = read_bounded(path, MAX_SETTINGS_BYTES, follow=True).decode().splitlines()
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
            if match[1] in UNSUPPORTED and match[2].strip("\"'"):
                yield f"{path}:{number}: {match[1]} is not supported; {UNSUPPORTED[match[1]]}"
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
    if PERCENT.search(command):
        raise ValueError(
            "cron takes % for a line end, and what follows for standard input; write \\% for a percent sign"
        )
    command = command.replace("\\%", "%")
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
    argv = list_argv(str(path)) if is_batch else (str(path),)
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


def parse_when(text: str, zone: tzinfo) -> When:
    """Parse five fields of crontab(5) or a macro such as @daily. Raises ValueError.

    As in crontab(5), if both day of month and day of week are restricted, one matching field is enough.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"{text!r:.80}… is longer than {MAX_CHARS} characters")
    if text.startswith("@") and text not in MACROS:
        raise ValueError(f"{text!r:.80} is unknown; valid macros: {', '.join(MACROS)}")
    fields = MACROS.get(text, text).split()
    if len(fields) != 5:
        raise ValueError(
            f"{text!r:.80} has {len(fields)} fields, needs 5: minute, hour, day of month, month, day of week"
        )
    minute, hour, day, month, weekday = fields
    either = not (day.startswith("*") or weekday.startswith("*"))
    weekday = weekdays(weekday)
    choices: Sequence[tuple[str, str]] = [(day, "*"), ("*", weekday)] if either else [(day, weekday)]
    triggers = tuple(CronTrigger.from_crontab(f"{minute} {hour} {d} {month} {w}", timezone=zone) for d, w in choices)
    return When(text=text, triggers=triggers, is_daily=not hour.startswith("*"))


def weekdays(field: str) -> str:
    """Return crontab's days of the week as names: APScheduler counts from Monday, crontab from Sunday."""
    if field == "*":
        return field
    days: set[int] = set()
    for part in field.split(","):
        days |= _span(part)
    return ",".join(name for number, name in enumerate(WEEKDAYS) if number in days)


def _span(part: str) -> set[int]:
    match = DAY.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r:.40} is not a day of the week: 0 to 7 or sun to sat, 1-5, */2")
    first, last, step = match.groups()
    low = _number(first) if first else 0
    high = 6 if first is None or step else low
    if last:
        high = _number(last) or 7
    if high < low:
        raise ValueError(f"{part!r:.40}: weeks start on Sunday, so the range goes backwards")
    return {number % 7 for number in range(low, high + 1, int(step or 1))}


def _number(word: str) -> int:
    if word.isdigit():
        return int(word)
    if word.lower() not in WEEKDAYS:
        raise ValueError(f"{word!r:.40} is not a day of the week: sun, mon, tue, wed, thu, fri or sat")
    return WEEKDAYS.index(word.lower())
