"""`[progress]` of TRAIN.toml: where the progress of a foreign trainer shows."""

from typing import Annotated

from pydantic import AfterValidator

from opsctl.base.tables import read_package_table
from opsctl.settings.bounded_pattern import compile_bounded
from opsctl.settings.field_types import SettingsTable, must

PATTERN_GROUPS: tuple[str, ...] = tuple(read_package_table("settings/progress.toml")["groups"])
"""The groups of `pattern`; the unit is a part of the name."""


def check_step_pattern(pattern: str) -> str:
    """Return the pattern if it can be used for step lines. Raises ValueError."""
    if not pattern:
        return pattern
    names = compile_bounded(pattern).names
    if "step" not in names:
        raise ValueError(f"{pattern!r:.80} has no group `step`, such as step=(?P<step>\\d+)")
    if unknown := names - set(PATTERN_GROUPS):
        raise ValueError(f"unknown group {', '.join(sorted(unknown))}; known: {', '.join(PATTERN_GROUPS)}")
    return pattern


SaveDirectory = Annotated[str, must(lambda path: path and "\0" not in path, "{!r} is not a directory")]


class ProgressSettings(SettingsTable):
    """`[progress]` of TRAIN.toml: where the progress of a foreign trainer shows."""

    pattern: Annotated[str, AfterValidator(check_step_pattern)] = ""
    checkpoint_directories: tuple[SaveDirectory, ...] = ()
