"""`[setup]` of TRAIN.toml: preparations on the first node, and the code that the trainer runs."""

from typing import Literal, Self

from pydantic import Field, model_validator

from opsctl.settings.field_types import Directory, SettingsTable, Size, Text, Word


class ShellSetup(SettingsTable):
    """`[setup]` of TRAIN.toml: preparations on the first node, before the trainer starts."""

    directory: Directory = ""
    modules: tuple[Word, ...] = ()
    lines: tuple[Text, ...] = ()
    freeze: Literal["none", "git", "copy"] = "none"
    freeze_exclude: tuple[Text, ...] = ()
    freeze_max_size: Size = Field(500 << 20, ge=0)

    @model_validator(mode="after")
    def _frozen_directory(self) -> Self:
        if self.freeze != "none" and not self.directory:
            raise ValueError("freeze needs `directory`, the directory of the trainer's code")
        return self
