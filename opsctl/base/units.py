"""Parse and format durations, sizes, shares, counts and times."""

import re
from datetime import datetime, timedelta

_DURATION = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTPE]?)(?:i?B)?", re.IGNORECASE)
_SLURM_TIME = re.compile(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)
_SIZE_PREFIXES = " KMGTPE"
_COUNT_PREFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
MAX_DURATION = timedelta(days=3660)
UNITS_S = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
"""Ends of keys, and names of options' values, that name the unit of a duration."""


def parse_duration(text: str) -> timedelta:
    """Read `90s`, `10m`, `1h30m`, `2d` or `1w`, largest unit first. Raises ValueError for 0 and for more than 10 years.

    Options, settings files and requests all use this grammar.
    """
    match = _DURATION.fullmatch(text.strip())
    try:
        weeks, days, hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0,) * 5
        duration = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        duration = timedelta(0)
    if not timedelta(0) < duration <= MAX_DURATION:
        raise ValueError(f"{text!r:.40} is not a duration, such as 90s, 10m, 1h30m or 2d")
    return duration


def convert_duration(text: str, unit_s: float) -> float:
    """Read a duration as a number of units. Raises ValueError as `parse_duration` does."""
    return parse_duration(text).total_seconds() / unit_s


def format_duration(seconds: float | timedelta) -> str:
    """Show a duration in its two largest units, as `parse_duration` reads them: `3d 4h`, `2h 5m`, `4m 10s`, `0.35s`.

    The sign is dropped: the caller adds `ago` or `left`.
    """
    amount = abs(seconds.total_seconds() if isinstance(seconds, timedelta) else seconds)
    if amount < 9.95:
        return f"{amount:.2g}s"
    whole = round(amount) if amount < 1e12 else int(1e12)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    units = ((days, "d"), (hour, "h"), (minute, "m"), (second, "s"))
    first = next((index for index, (number, _) in enumerate(units) if number), 3)
    return " ".join(f"{number}{unit}" for number, unit in units[first : first + 2] if number)


def format_step_time(seconds: float) -> str:
    """Show the time of one step with three digits: `0.195 s`, `38.2 s`."""
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"


def parse_size(text: str) -> int:
    """Read bytes (or inodes) from `400T`, `2.5 GiB`, `3000000`. Units are powers of 1024. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r:.40} is not a size, such as 400T, 2.5GiB or a number")
    try:
        return int(float(match[1]) * 1024 ** _SIZE_PREFIXES.index(match[2].upper() or " "))
    except OverflowError as error:
        raise ValueError(f"{text!r:.40} is too large a size") from error


def format_size(size_bytes: float) -> str:
    """Show bytes with three digits and a power of 1024, such as `2.3 TiB`; four digits for 1000 to 1023."""
    size, prefix = size_bytes, 0
    while abs(size) >= 1024 and prefix < len(_SIZE_PREFIXES) - 1:
        size, prefix = size / 1024, prefix + 1
    if prefix == 0:
        return f"{size:.0f} B"
    digits = f"{size:.0f}" if abs(size) >= 999.5 else f"{size:.3g}"  # `.3g` would show 1008 as 1.01e+03
    return f"{digits} {_SIZE_PREFIXES[prefix]}iB"


def format_percent(share: float | None) -> str:
    """Show a share of 1 in percent: `97.3%`; `unknown` for None; `< 0.1%` where rounding would show none."""
    if share is None:
        return "unknown"
    return "< 0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def format_count(number: float) -> str:
    """Show a number of tokens or samples: `36.9k`, `12.3M`, `341B`; whole below a thousand."""
    for size, prefix in _COUNT_PREFIXES:
        if number >= size:
            return f"{number / size:.3g}{prefix}"
    return f"{number:.0f}"


def parse_time(text: str, now: datetime) -> datetime:
    """Read `2026-03-01`, `2026-03-01 12:00` (local time) or an age such as `3d`. Raises ValueError."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        pass
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r:.40} is not a time, such as 2026-03-01, '2026-03-01 12:00', 3d or 12h") from None


def format_time(at: datetime) -> str:
    """Show a moment in local time, to the minute: `2026-03-01 12:00`."""
    return f"{at.astimezone():%Y-%m-%d %H:%M}"


def parse_slurm_minutes(text: str) -> int | None:
    """Read a time limit of Slurm, rounded up to minutes as Slurm does. None for `UNLIMITED` and other words.

    Forms: `minutes`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS` (#SBATCH --time).
    """
    match = _SLURM_TIME.fullmatch(text)
    if match is None:
        return None
    days, *clock = match.groups()
    numbers = [int(number) for number in clock if number is not None]
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]  # without days and hours, minutes come first
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return int(days or 0) * 1440 + hours * 60 + minutes + (seconds > 0)
