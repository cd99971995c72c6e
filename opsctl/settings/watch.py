"""Watchdogs: `[watch]` and `[[filesystem]]` of site.toml, `[watch]` of TRAIN.toml."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from opsctl.settings.bounded_pattern import compile_bounded
from opsctl.settings.field_types import Name, Pattern, SettingsTable, Size, Text

QUOTA_GROUPS = frozenset({"used", "limit", "percent", "inodes_used", "inodes_limit", "inodes_percent", "at"})
"""The named groups that the pattern of a quota command may have."""


class CheckTable(SettingsTable):
    """`[[watch.checks]]`: a watchdog of your own. Commands run as you, without a shell, on the host of the watch."""

    name: Name = Field(description="name in the alert's key: train_checks/TRAIN/NAME or site_checks/site/NAME")
    kind: Literal["log", "command", "number"] = Field(
        description="log: a pattern in new lines of a file; command: a Nagios plugin, whose exit code 0, 1, 2 or 3 is"
        " the severity and whose first line is the summary; number: the first number of the command's output or file"
    )
    file: Text = Field(
        "", description="path of the file; relative to the run directory of the train, or to `root` for the site"
    )
    pattern: Pattern = Field("", description="with kind = log: regular expression that matches a bad line")
    level: Literal["warning", "critical"] = Field("warning", description="with kind = log: severity of a match")
    minutes: float = Field(60, gt=0, description="with kind = log: time after the last match until the alert is over")
    command: tuple[Text, ...] = Field((), description="program and arguments; {train} and {run} are replaced")
    timeout_seconds: float = Field(10, gt=0, le=50, description="time limit of the command; a late one is unknown")
    warning_above: float | None = Field(None, description="with kind = number: a greater number is a warning")
    critical_above: float | None = Field(None, description="with kind = number: a greater number is critical")
    warning_below: float | None = Field(None, description="with kind = number: a smaller number is a warning")
    critical_below: float | None = Field(None, description="with kind = number: a smaller number is critical")
    unit: str = Field("", description="with kind = number: unit in the summary")
    remedy: str = Field("", description="what to do about a bad result")

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

    timeout_seconds: float = Field(
        60, gt=0, description="seconds after which a watchdog is abandoned and its findings are unknown"
    )
    clock_tolerance_seconds: float = Field(
        120, ge=0, description="largest difference between the clocks of nodes; smaller ages are ignored"
    )
    exclusive_allocation_minutes: float | None = Field(
        None,
        ge=0,
        description="for nodes that are yours alone: a longer wait is a warning; 0: any wait; unset: shared nodes",
    )
    blocked_minutes: float = Field(
        30,
        ge=0,
        description="a wait for a partition that is down, an account limit and the like is a warning after this time",
    )
    waiting_hours: float | None = Field(
        None,
        gt=0,
        description="time without a running task, behind other jobs, that is a warning; unset: three times the train's"
        " longest wait so far, at least 24",
    )
    held_hours: float = Field(
        12, gt=0, description="a train held or paused for longer is a warning; for twice as long, critical"
    )
    pulse_minutes: float = Field(10, ge=0, description="shortest time between PULSE lines, unless something changes")
    cron_minutes: float = Field(30, gt=0, description="age of the last cron tick from which on cron counts as dead")
    checks: Checks = Field((), description="watchdogs of your own")


class Filesystem(SettingsTable):
    """`[[filesystem]]` of site.toml: a file system that must not become full."""

    name: str = Field(min_length=1, description="name in alerts")
    path: str = Field(description="a directory on the file system; with by = du, the directory to measure")
    by: Literal["statvfs", "du", "command"] = Field(
        "statvfs",
        description="method of measurement: statvfs as df, du in the background, command: the site's quota program",
    )
    command: tuple[str, ...] = Field((), description="with by = command: the program and its arguments")
    pattern: Pattern = Field(
        "",
        description=f"regular expression for the output; named groups: {', '.join(sorted(QUOTA_GROUPS))}",
    )
    limit: Size | None = Field(None, description="bytes allowed, if the system does not report a limit (du)")
    inode_limit: Size | None = Field(None, description="inodes allowed, if the system does not report a limit (du)")
    reliable_percent: float = Field(
        100, gt=0, le=100, description="share that can be used before single disks are full: 80 on some systems"
    )
    warning_percent: float = Field(
        85, gt=0, le=100, description="usage of bytes or inodes above which there is a warning"
    )
    critical_percent: float = Field(95, gt=0, le=100, description="usage of bytes or inodes that is critical")
    free: Size = Field(0, description="free space below which the state is critical")
    warning_hours: float = Field(
        72, ge=0, description="warning if the trains will fill the file system within this time"
    )
    critical_hours: float = Field(
        24, ge=0, description="critical if the trains will fill the file system within this time"
    )
    stale_minutes: float = Field(
        60, gt=0, description="figures that do not change for this long despite writes are stale"
    )
    every_minutes: float = Field(1440, gt=0, description="time between two measurements by du")

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

    off: tuple[str, ...] = Field((), description="watchdogs that are disabled for this train")
    checks: Checks = Field((), description="watchdogs of your own, run only for the owner of the train")
    also_jobs: tuple[Pattern, ...] = Field(
        (),
        description="patterns of full names of other jobs that count as part of this train",
    )
    hang_minutes: float | None = Field(None, gt=0, description="time without progress that is a hang; unset: learnt")
    init_minutes: float = Field(
        60, gt=0, description="time from the start of the job to the first step, before the train counts as hung"
    )
    hang_cancels: bool = Field(
        default=False,
        description="end a hung attempt after its stacks are saved: the guard starts again in the same allocation, or"
        " the next task starts",
    )
    stacks_seconds: float = Field(10, ge=0, le=50, description="time to wait for the stacks of the ranks")
    py_spy: str = Field(
        "auto",
        description="path of py-spy on the nodes, run on every hung rank by a job step; auto: if installed; empty:"
        " not run",
    )
    checkpoint_hours: float | None = Field(
        None, gt=0, description="time without a checkpoint that is a warning; unset: learnt"
    )
    stalled_attempts: int = Field(
        3, ge=2, description="attempts in a row that go on from the same step and save nothing, which is critical"
    )
    slower_percent: float = Field(
        5, gt=0, lt=100, description="slowdown against the median of the run that is a warning"
    )
