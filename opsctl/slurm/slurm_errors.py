"""Translate the error messages of Slurm's programs into opsctl's errors."""

import re
from collections.abc import Iterable

from opsctl.base.capabilities import OLDEST, format_version
from opsctl.base.errors import NotAllowed, SlurmError, Unreachable
from opsctl.base.ports import Completed
from opsctl.slurm.field_values import SLURM_WORDS

HINT = "check that slurmctld is running: opsctl doctor"

NO_ANSWER = re.compile("|".join(SLURM_WORDS["no_answer"]))
REFUSED = re.compile("Access/permission denied|Invalid user id")
GONE = re.compile("already finished|already completing or completed|No error$")
UNKNOWN_ID = re.compile("Invalid job id specified")
NOT_PENDING = re.compile("no longer pending execution")
UNKNOWN_FIELD = re.compile("Invalid (job )?format specification: (.*)")
MAX_TEXT_CHARS = 2000
"""An array prints one line for each group of tasks."""
PREFIX = re.compile(r"^\w+: (error|fatal): ")


def raise_for_error(done: Completed, *, fine: Iterable[re.Pattern[str]] = ()) -> Completed:
    """Return the completed command, or raise Unreachable, NotAllowed or SlurmError.

    For an array Slurm prints one line for each group of tasks and fails if one group failed. Lines that match a
    pattern in `fine` are not errors.
    """
    program = done.argv[0]
    if done.code == 0:
        unknown_field = UNKNOWN_FIELD.search(done.err)
        if unknown_field:
            raise SlurmError(
                f"{program} does not know the field {unknown_field[2]:.100}",
                hint=f"opsctl needs Slurm {format_version(OLDEST)} or newer",
            )
        return done
    lines = [PREFIX.sub("", line.strip()) for line in done.err.splitlines() if line.strip()]
    errors = [line for line in lines if not any(pattern.search(line) for pattern in fine)]
    if lines and not errors:
        return done
    text = "; ".join(dict.fromkeys(errors))[:MAX_TEXT_CHARS] or f"exit code {done.code} and no message"
    if NO_ANSWER.search(done.err):
        raise Unreachable(f"{program} got no answer: {text}", hint=HINT)
    if REFUSED.search(text):
        raise NotAllowed(
            f"{program} was denied permission: {text}", hint="only the job's owner and Slurm operators may do this"
        )
    raise SlurmError(f"{program} refused: {text}")
