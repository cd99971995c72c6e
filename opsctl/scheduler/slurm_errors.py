"""What Slurm's programs say when they do not do it, and which of our errors that is."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opsctl.capabilities import OLDEST, name_of
from opsctl.errors import NotAllowed, SchedulerError, Unreachable
from opsctl.ports import Completed

HINT = "is slurmctld up?  opsctl doctor"

NO_ANSWER = re.compile(
    "|".join(
        (
            "Unable to contact slurm controller",
            "Unexpected message received",  # what scontrol makes of a controller that is down
            "Socket timed out",
            "Zero Bytes were transmitted",
            "Communication connection failure",
            "Connection (refused|reset|timed out)",
            "Transport endpoint is not connected",
            "No route to host",
            "in standby mode",
            "temporarily unable to",
            "authentication error",
            "Unable to process configuration file",
            "[Cc]ould not establish a configuration source",
            "Problem talking to the database",
        )
    )
)
REFUSED = re.compile("Access/permission denied|Invalid user id")
GONE = re.compile("already finished|already completing or completed|No error$")
UNKNOWN_ID = re.compile("Invalid job id specified")
NOT_PENDING = re.compile("no longer pending execution")
UNKNOWN_FIELD = re.compile("Invalid (job )?format specification: (.*)")
PREFIX = re.compile(r"^\w+: (error|fatal): ")


def raise_for_error(done: Completed, *, fine: Iterable[re.Pattern[str]] = ()) -> Completed:
    """The same, if it did what it should. Otherwise raises what its words mean.

    On an array Slurm says one line for each group of tasks and fails if one of them failed, so a line that is `fine`
    is no failure.
    """
    name = done.argv[0]
    if done.code == 0:
        unknown = UNKNOWN_FIELD.search(done.err)
        if unknown:
            raise SchedulerError(
                f"{name} does not know the field {unknown[2]}", hint=f"opsctl needs Slurm {name_of(OLDEST)} or newer"
            )
        return done
    lines = [PREFIX.sub("", line.strip()) for line in done.err.splitlines() if line.strip()]
    bad = [line for line in lines if not any(pattern.search(line) for pattern in fine)]
    if lines and not bad:
        return done
    text = "; ".join(dict.fromkeys(bad)) or f"exit code {done.code} and no message"
    if NO_ANSWER.search(done.err):
        raise Unreachable(f"{name} got no answer: {text}", hint=HINT)
    if REFUSED.search(text):
        raise NotAllowed(f"{name} may not: {text}", hint="only the job's owner and Slurm's operators may do that")
    raise SchedulerError(f"{name} refused: {text}")
