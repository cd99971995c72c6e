"""Where copies of logs, curves and reports go: `[publish]` of site.toml, or of TRAIN.toml instead of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from opsctl.settings.field_types import SettingsTable, Size

PLACEHOLDERS = ("source", "train")
_BRANCH = re.compile(r"(?!-)(?!.*(?:\.\.|//|@\{|\.lock$))[A-Za-z0-9._/-]{1,100}(?<![./])")
_PLACEHOLDER = re.compile(r"\{(\w*)\}")


def _check_pattern(text: str) -> str:
    parts = text.split("/")
    if not text or text.startswith("/") or ".." in parts or not text.isprintable():
        raise ValueError(f"{text!r} is not a pattern of files of a run directory, such as logs/*.txt or metrics/**/*")
    if parts[0] == "checkpoints":
        raise ValueError(f"{text!r}: checkpoints are never published; opsctl checkpoint offload copies them")
    return text


def _check_remote(text: str) -> str:
    if text.startswith("-") or not text.isprintable() or " " in text:
        raise ValueError(f"{text!r:.40} is not a git remote")
    if text and ":" not in text and text[0] not in "/~$":
        raise ValueError(f"{text!r:.80} depends on where it is read from: needs to be a whole path, or host:path")
    # What stands there is seen in the list of processes, and kept in git's own files.
    if "?" in text or re.match(r"https?://[^/]*@|\w+://[^/@]*:[^/@]*@", text):
        raise ValueError("the remote says who you are: leave that to a key of ssh or to git's credential helper")
    return text


def _check_path(text: str) -> str:
    if text and text[0] not in "/~$":
        raise ValueError(f"{text!r:.80} depends on where it is read from: needs to be a whole path")
    return text


def _check_branch(text: str) -> str:
    if not _BRANCH.fullmatch(text):
        raise ValueError(f"{text!r:.60} is not a branch name")
    return text


def _check_command(text: str) -> str:
    if text:
        unknown = sorted(set(_PLACEHOLDER.findall(text)) - set(PLACEHOLDERS))
        if unknown:
            raise ValueError(f"{{{unknown[0]}}} is not a placeholder; there are {{source}} and {{train}}")
        if "{source}" not in text:
            raise ValueError("needs {source}, the directory that is to be copied")
        _check_quotes(text)
    return text


def _check_quotes(text: str) -> None:
    """Values bring their own quotes; inside others these would end them, and the shell would run what a name says."""
    odd = {name: f"a ';{name}" for name in PLACEHOLDERS}
    try:
        words = shlex.split(fill(text, odd))
    except ValueError:
        words = []
    if not all(any(odd[name] in word for word in words) for name in PLACEHOLDERS if f"{{{name}}}" in text):
        raise ValueError("{source} and {train} stand outside of quotes, for they bring their own")


def fill(command: str, values: Mapping[str, str]) -> str:
    """The command with each value quoted for the shell."""
    return _PLACEHOLDER.sub(lambda match: shlex.quote(values[match[1]]), command)


FilePattern = Annotated[str, AfterValidator(_check_pattern)]
Place = Annotated[str, AfterValidator(_check_path)]
Remote = Annotated[str, AfterValidator(_check_remote)]
Branch = Annotated[str, AfterValidator(_check_branch)]
Command = Annotated[str, AfterValidator(_check_command)]


class PublishTable(SettingsTable):
    """Copies of logs, curves and the report, for others to see: `[publish]` of site.toml, or of TRAIN.toml instead."""

    to: Literal["", "path", "git", "command"] = Field("", description="how; empty: nothing is published")
    path: Place = Field("", description="a directory, in which each train gets one; with to = path")
    remote: Remote = Field("", description="of git, without a password in it; with to = git")
    branch: Branch = Field("main", description="of git: what is pushed to")
    command: Command = Field(
        "", description="shell; {source} is the directory to copy, {train} the name; with to = command"
    )
    files: tuple[FilePattern, ...] = Field(
        ("logs/*.txt", "logs/*.log", "metrics/**/*"), description="patterns of files of the run directory"
    )
    report: bool = Field(default=True, description="also what `opsctl report` says")
    max_file: Size = Field(64 << 20, ge=1 << 10, description="of a larger log only the end is published")
    timeout_seconds: float = Field(240, gt=0, description="how long one call may take, for all trains together")
    secret_files: tuple[str, ...] = Field(
        (), description="each line of these is struck out, besides the secrets of [alerts] and those in the environment"
    )

    @model_validator(mode="after")
    def _has_its_place(self) -> PublishTable:
        needed = {"path": self.path, "git": self.remote, "command": self.command}
        if not self.to and (named := [how for how, place in needed.items() if place]):
            raise ValueError(f"to is not given: {' or '.join(named)}, by what is set beside it")
        if self.to and not needed[self.to]:
            raise ValueError(f"to = {self.to} needs `{'remote' if self.to == 'git' else self.to}`")
        return self
