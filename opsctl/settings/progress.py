"""`[progress]` of TRAIN.toml: where the progress of a foreign trainer shows."""

from __future__ import annotations

from pydantic import Field

from opsctl.settings.field_types import SettingsTable


class ProgressSettings(SettingsTable):
    """`[progress]` of TRAIN.toml: where the progress of a foreign trainer shows."""

    checkpoint_directories: tuple[str, ...] = Field(
        (),
        description=(
            "directories with checkpoints, in addition to those that the command and the log name; relative ones start"
            " at the working directory of the trainer"
        ),
    )
