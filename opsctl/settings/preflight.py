"""`[preflight]` of TRAIN.toml: errors of preflight that do not refuse the train."""

from __future__ import annotations

from pydantic import Field

from opsctl.settings.field_types import SettingsTable, Word


class PreflightSettings(SettingsTable):
    """`[preflight]` of TRAIN.toml: errors of preflight that do not refuse the train."""

    allow: tuple[Word, ...] = Field(
        (), description="checks whose errors become warnings, such as batch; launch and edit journal each error"
    )
