"""The error tree. A message states the problem and its place; the hint states the next step.

Only the command line exits. The numbers are exit codes.

OpsctlError            1   an expected failure: the user reads the message
├── InputError         2   the input is wrong; nothing was changed
│   └── ConfigError    2   a settings file is invalid; lists every problem
├── RunDirError        1   the run directory is missing, not writable, full, or writable by others
├── NotTrusted         1   others could have written a settings file, whose commands run as the user
├── MissingProgram     1   a program that is not installed
├── MissingPackage     1   a Python package of an extra that is not installed
├── SlurmError     1   Slurm refused
│   ├── NotAllowed     1   Slurm refused, because the job belongs to another user
│   └── Unreachable   75   Slurm did not answer; safe to try again
├── SandboxError       1   the private Slurm did not start or stop
├── HostUnreachable   75   ssh could not run the command on another host
└── WaitTimedOut      75   a wait ended before the awaited state; safe to wait again
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MAX_MESSAGE_CHARS = 8000
"""A message may quote names that strangers chose."""


class OpsctlError(Exception):
    """An expected failure. `hint` is the next step for the user."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]} ..."
        super().__init__(self.message)
        self.hint = hint


class InputError(OpsctlError):
    """The input of the user is wrong. Nothing was changed."""

    exit_code = 2


class ConfigError(InputError):
    """A settings file is invalid. `problems` has one line per problem."""

    def __init__(self, where: str, problems: Sequence[str], *, hint: str | None = None) -> None:
        self.where = where
        self.problems = tuple(problems)
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__(f"{where}: {count}\n" + "\n".join(f"  {problem}" for problem in problems), hint=hint)


class RunDirError(OpsctlError):
    """The run directory is missing, not writable, full, or writable by others."""


class NotTrusted(OpsctlError):
    """Others could have written a settings file. Nothing was read."""


def cannot_write(path: Path, error: OSError) -> RunDirError:
    """Return the error for a path that is missing, full, read-only or forbidden."""
    return RunDirError(
        f"{path}: {error.strerror or error}", hint="is it there, may you write there, and is there space left?"
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise RunDirError for an OSError of the block, which writes `path`."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_read(path: Path, error: OSError) -> RunDirError:
    """Return the error for a path that cannot be read."""
    return RunDirError(f"{path}: {error.strerror or error}", hint="may you read it, and every directory above it?")


class MissingProgram(OpsctlError):
    """A program is not installed, or not on PATH."""


class MissingPackage(OpsctlError):
    """A Python package of an extra is not installed; the hint is the command that installs it."""


class SlurmError(OpsctlError):
    """Slurm refused a command."""


class NotAllowed(SlurmError):
    """Slurm refused because the job belongs to another user."""


class Unreachable(SlurmError):
    """Slurm did not answer, so the state of jobs is unknown. Safe to try again."""

    exit_code = 75


class SandboxError(OpsctlError):
    """The private Slurm did not start, or did not stop. `logs` is the directory of its logs, if they tell more."""

    def __init__(self, message: str, *, hint: str | None = None, logs: Path | None = None) -> None:
        super().__init__(message, hint=f"all logs: {logs}" if logs else hint)
        self.logs = logs


class HostUnreachable(OpsctlError):
    """ssh could not reach the host of `--host`, or ended without the command. Safe to try again."""

    exit_code = 75


class WaitTimedOut(OpsctlError):
    """A wait ended before the awaited state. Safe to wait again."""

    exit_code = 75
