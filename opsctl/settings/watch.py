"""Watchdogs: `[watch]` and `[[filesystem]]` of site.toml, `[watch]` of TRAIN.toml."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from opsctl.settings.bounded_pattern import compile_bounded
from opsctl.settings.field_types import Name, Pattern, SettingsTable, Size, Text

QUOTA_GROUPS = frozenset({"used", "limit", "percent", "inodes_used", "inodes_limit", "inodes_percent", "at"})
"""The named groups that the pattern of a quota command may have."""


class CheckTable(SettingsTable):
    """`[[watch.checks]]`: a watchdog of your own. Commands run as you, without a shell, on the host of the watch."""

    name: Name
    kind: Literal["log", "command", "number"]
    file: Text = ""
    pattern: Pattern = ""
    severity: Literal["warning", "critical"] = "warning"
    minutes: float = Field(60, gt=0)
    command: tuple[Text, ...] = ()
    timeout_seconds: float = Field(10, gt=0, le=50)
    warning_above: float | None = None
    critical_above: float | None = None
    warning_below: float | None = None
    critical_below: float | None = None
    unit: str = ""
    remedy: str = ""

    @property
    def limits(self) -> tuple[float | None, ...]:
        return self.warning_above, self.critical_above, self.warning_below, self.critical_below

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.kind == "log" and not (self.file and self.pattern):
            raise ValueError(f"check {self.name}: kind = log needs `file` and `pattern`")
        if self.kind == "command" and not self.command:
            raise ValueError(f"check {self.name}: kind = command needs `command`")
        if self.kind == "number" and bool(self.command) == bool(self.file):
            raise ValueError(f"check {self.name}: kind = number needs either `command` or `file`")
        if self.kind == "number" and all(limit is None for limit in self.limits):
            raise ValueError(f"check {self.name}: kind = number needs a limit, such as warning_above")
        return self


def check_names(checks: tuple[CheckTable, ...]) -> tuple[CheckTable, ...]:
    """Return the checks if their names differ. Raises ValueError."""
    names = [check.name for check in checks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two checks have the name {', '.join(twice)}")
    return checks


Checks = Annotated[tuple[CheckTable, ...], AfterValidator(check_names)]


class WatchSettings(SettingsTable):
    """`[watch]` of site.toml: settings for all trains."""

    timeout_seconds: float = Field(60, gt=0)
    clock_tolerance_seconds: float = Field(120, ge=0)
    exclusive_allocation_minutes: float | None = Field(None, ge=0)
    blocked_minutes: float = Field(30, ge=0)
    waiting_hours: float | None = Field(None, gt=0)
    held_hours: float = Field(12, gt=0)
    pulse_minutes: float = Field(10, ge=0)
    cron_minutes: float = Field(30, gt=0)
    checks: Checks = ()


class Filesystem(SettingsTable):
    """`[[filesystem]]` of site.toml: a file system that must not become full."""

    name: str = Field(min_length=1)
    path: str
    by: Literal["statvfs", "du", "command"] = "statvfs"
    command: tuple[str, ...] = ()
    pattern: Pattern = Field(
        "",
        description=f"regular expression for the output; named groups: {', '.join(sorted(QUOTA_GROUPS))}",
    )
    limit: Size | None = None
    inode_limit: Size | None = None
    reliable_percent: float = Field(100, gt=0, le=100)
    warning_percent: float = Field(85, gt=0, le=100)
    critical_percent: float = Field(95, gt=0, le=100)
    free: Size = 0
    warning_hours: float = Field(72, ge=0)
    critical_hours: float = Field(24, ge=0)
    stale_minutes: float = Field(60, gt=0)
    every_minutes: float = Field(1440, gt=0)

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        problems = []
        if self.by == "command" and not (self.command and self.pattern):
            problems.append("by = command needs `command` and `pattern`")
        if self.pattern and (unknown := compile_bounded(self.pattern).names - QUOTA_GROUPS):
            problems.append(f"pattern: no such group: {', '.join(sorted(unknown))}")
        if self.by == "du" and not (self.limit or self.inode_limit):
            problems.append("by = du needs `limit` or `inode_limit`: du does not report a limit")
        if self.critical_percent < self.warning_percent:
            problems.append("critical_percent is below warning_percent")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class TrainWatchSettings(SettingsTable):
    """`[watch]` of TRAIN.toml: thresholds of one train. Unset values are learnt from the run itself."""

    off: tuple[str, ...] = ()
    checks: Checks = ()
    also_jobs: tuple[Pattern, ...] = ()
    hang_minutes: float | None = Field(None, gt=0)
    init_minutes: float = Field(60, gt=0)
    hang_cancels: bool = False
    stacks_seconds: float = Field(10, ge=0, le=50)
    py_spy: str = "auto"
    checkpoint_hours: float | None = Field(None, gt=0)
    stalled_attempts: int = Field(3, ge=2)
    slower_percent: float = Field(5, gt=0, lt=100)
