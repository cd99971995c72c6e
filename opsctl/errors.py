"""The one error tree. A message says what and where; the hint says what to do now; only the command line exits.

OpsctlError            1   expected: the user reads the message, not a traceback
├── InputError         2   what the user gave is wrong; nothing was changed
│   └── ConfigError    2   a file of the user's, with every problem in it at once
├── RunDirError        1   the run directory is missing, not writable, full, or not to be trusted
├── MissingProgram     1   a program that is not installed
├── MissingPackage     1   a Python package of an extra that is not installed
├── SchedulerError     1   Slurm refused
│   ├── NotAllowed     1   Slurm refused, because the job is someone else's
│   └── Unreachable   75   Slurm did not answer: nothing is known; safe to try again
└── SandboxError       1   the private Slurm did not come up or go down
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class OpsctlError(Exception):
    """An expected failure, with what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(OpsctlError):
    """What the user typed cannot be meant. Nothing was changed."""

    exit_code = 2


class ConfigError(InputError):
    """A file of the user's does not hold; `problems` has one line for each thing wrong in it."""

    def __init__(self, where: str, problems: Sequence[str], *, hint: str | None = None) -> None:
        self.where = where
        self.problems = tuple(problems)
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__(f"{where}: {count}\n" + "\n".join(f"  {problem}" for problem in problems), hint=hint)


class RunDirError(OpsctlError):
    """The run directory is missing, not writable, full, or writable by others."""


def cannot_write(path: Path, error: OSError) -> RunDirError:
    """The same words for a full, a missing, a read-only and a forbidden place, wherever it is found."""
    return RunDirError(
        f"{path}: {error.strerror or error}", hint="is it there, may you write there, and is there space left?"
    )


def cannot_read(path: Path, error: OSError) -> RunDirError:
    return RunDirError(f"{path}: {error.strerror or error}", hint="may you read it, and every directory above it?")


class MissingProgram(OpsctlError):
    """A program that is not installed, or not on PATH."""


class MissingPackage(OpsctlError):
    """A Python package of an extra is not installed; the hint is the command that installs it."""


class SchedulerError(OpsctlError):
    """Slurm answered, and refused."""


class NotAllowed(SchedulerError):
    """Slurm refused because this user may not do that to that job."""


class Unreachable(SchedulerError):
    """Slurm did not answer. Nothing is known. Safe to try again."""

    exit_code = 75


class SandboxError(OpsctlError):
    """The private Slurm did not come up, or did not go down."""
