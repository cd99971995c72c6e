"""Watchdogs by configuration: `[[watch.checks]]` of site.toml and of TRAIN.toml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from opsctl.settings.bounded_pattern import compile_bounded
from opsctl.settings.field_types import Name, SettingsTable, Text


def _check_pattern(pattern: str) -> str:
    compile_bounded(pattern)
    return pattern


BoundedText = Annotated[str, AfterValidator(_check_pattern)]


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
    pattern: BoundedText = Field("", description="with kind = log: regular expression that matches a bad line")
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
    def _makes_sense(self) -> CheckTable:
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
