"""`[setup]` of TRAIN.toml: preparations on the first node, and the code that the trainer runs."""

from typing import Literal, Self

from pydantic import Field, model_validator

from opsctl.settings.field_types import Directory, SettingsTable, Size, Text, Word


class ShellSetup(SettingsTable):
    """`[setup]` of TRAIN.toml: preparations on the first node, before the trainer starts."""

    directory: Directory = Field("", description="working directory of the trainer; empty: the run directory")
    modules: tuple[Word, ...] = Field((), description="environment modules to load")
    lines: tuple[Text, ...] = Field((), description="shell lines run verbatim before the trainer")
    freeze: Literal["none", "git", "copy"] = Field(
        "none",
        description="run from a copy of `directory` made at launch, so that later changes reach no queued task; git:"
        " what git tracks or does not ignore, with uncommitted changes; copy: all files but caches and environments",
    )
    freeze_exclude: tuple[Text, ...] = Field(
        (), description="files and directories that are not copied, such as data or docs/*.pdf, relative to the code"
    )
    freeze_max_size: Size = Field(500 << 20, ge=0, description="largest copy; a launch with more to copy is refused")

    @model_validator(mode="after")
    def _frozen_directory(self) -> Self:
        if self.freeze != "none" and not self.directory:
            raise ValueError("freeze needs `directory`, the directory of the trainer's code")
        return self
