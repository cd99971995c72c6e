"""Publishing of logs, curves and reports: `[publish]` of site.toml; `[publish]` of TRAIN.toml replaces the site's."""

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from opsctl.settings.field_types import SettingsTable, Size, must

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
        raise ValueError(f"{text!r:.80} is relative: an absolute path or host:path is needed")
    # A remote is visible in the process list and stored in git's own files.
    if "?" in text or re.match(r"https?://[^/]*@|\w+://[^/@]*:[^/@]*@", text):
        raise ValueError("the remote contains credentials: use an ssh key or git's credential helper instead")
    return text


def _check_command(text: str) -> str:
    if text:
        unknown = sorted(set(_PLACEHOLDER.findall(text)) - set(PLACEHOLDERS))
        if unknown:
            raise ValueError(f"{{{unknown[0]}}} is not a placeholder; there are {{source}} and {{train}}")
        if "{source}" not in text:
            raise ValueError("{source}, the directory to copy, is missing")
        _check_quotes(text)
    return text


def _check_quotes(text: str) -> None:
    """Check that no placeholder is inside quotes. Raises ValueError.

    `fill` quotes the values; inside other quotes the shell would run parts of a value.
    """
    odd = {name: f"a ';{name}" for name in PLACEHOLDERS}
    try:
        words = shlex.split(fill(text, odd))
    except ValueError:
        words = []
    used = [value for name, value in odd.items() if f"{{{name}}}" in text]
    joined = "\0".join(words)
    if not all(value in joined for value in used):
        raise ValueError("{source} and {train} must stand outside of quotes: opsctl quotes the values")


def fill(command: str, values: Mapping[str, str]) -> str:
    """Return the command with its placeholders replaced by quoted values."""
    return _PLACEHOLDER.sub(lambda match: shlex.quote(values[match[1]]), command)


FilePattern = Annotated[str, AfterValidator(_check_pattern)]
Place = Annotated[
    str, must(lambda text: not text or text[0] in "/~$", "{!r:.80} is relative: an absolute path is needed")
]
Remote = Annotated[str, AfterValidator(_check_remote)]
Branch = Annotated[str, must(_BRANCH.fullmatch, "{!r:.60} is not a branch name")]
Command = Annotated[str, AfterValidator(_check_command)]


class PublishTable(SettingsTable):
    """Copies of logs, curves and the report for other people: `[publish]` of site.toml, or of TRAIN.toml instead."""

    to: Literal["", "path", "git", "command"] = ""
    path: Place = ""
    remote: Remote = ""
    branch: Branch = "main"
    command: Command = ""
    files: tuple[FilePattern, ...] = ("logs/*.txt", "logs/*.log", "metrics/**/*")
    report: bool = True
    max_file: Size = Field(64 << 20, ge=1 << 10)
    timeout_seconds: float = Field(240, gt=0)
    secret_files: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_its_place(self) -> Self:
        needed = {"path": self.path, "git": self.remote, "command": self.command}
        methods = [method for method, place in needed.items() if place]
        if not self.to and methods:
            raise ValueError(f"to is missing; by the other keys: {' or '.join(methods)}")
        if self.to and not needed[self.to]:
            raise ValueError(f"to = {self.to} needs `{'remote' if self.to == 'git' else self.to}`")
        return self
