"""Weigh the events of a log: how much each explains, and whether the program survived it."""

import re

from opsctl.diagnosis.causes import (
    OF_PROGRAM,
    UNEXPLAINED,
    CauseKind,
    Confidence,
    LineLevel,
    Weight,
    classify,
    find_level,
    is_exception,
)
from opsctl.diagnosis.excerpt import read_between, read_preceding
from opsctl.diagnosis.scan_logs import LogEvent

PRINTED = re.compile(
    r"^Exception ignored in|^--- Logging error ---|^Exception in thread .*(?:MsgRouter|ChkStop|NetStat)"
)
"""Lines above exceptions that Python prints and ignores."""
MAX_TRACEBACK_LINES = 60
MAX_END_LINES = 8
"""Lines at the end of a log among which a notice may be why a program ended without an error."""
MIN_ORDINARY_LINES = 12
"""Ordinary lines behind a failure after which the program went on."""
ENDING = re.compile(
    r"^\s|^Traceback|^wandb: |NCCL INFO|^frame #|^Exception raised from|^During handling|[Ss]hutting down"
)
"""Lines of tracebacks, and of what libraries write while a program ends."""
LITTLE = {"cannot-connect": 2, "rendezvous-timeout": 2, "infiniband": 2, "loss-nan": 1}
"""How much echoes of ranks that did not reach another rank explain, and a loss that is NaN, among the ends."""
MESSAGE = (Weight.ERROR, 1)
"""The weight of a cause that a program only prints."""
DEATHS = {"child-failed": 0, "rank-exited": 0, "torchrun-summary": 0, "traceback": 0, "interrupted": 1, "killed": 5}
"""How much an end explains among the ends without a reason: least an exit code, most a signal of the kernel."""


def weigh(event: LogEvent) -> tuple[Weight, int]:
    """Return how much an event explains: its weight, and an order among those of one weight."""
    cause = event.cause
    if cause.weight >= Weight.ERROR:
        return _weigh_error(event)
    if cause.weight is Weight.DEATH:
        return Weight.DEATH, DEATHS.get(cause.name, 3)
    if cause.name in LITTLE:
        return Weight.DEATH, LITTLE[cause.name]
    if event.peer and cause.weight is Weight.ECHO:
        return Weight.DEATH, 0
    return cause.weight, int(cause.kind is CauseKind.NUMERIC)


def _weigh_error(event: LogEvent) -> tuple[Weight, int]:
    """Weigh an error. A program survives what it prints without the mark of an error, or without raising it.

    So an exception later explains more. A bare exit code explains less than any message.
    """
    cause = event.cause
    if cause.kind not in OF_PROGRAM:
        return cause.weight, 0
    if is_exception(event.text):
        return cause.weight, 2 * (cause.sure is not Confidence.POSSIBLE)
    if find_level(event.text) is LineLevel.FATAL:
        return MESSAGE if cause.weight is Weight.CAUSE else (Weight.ERROR, 0)
    return Weight.DEATH, 4 if cause.weight is Weight.CAUSE else 2


def is_uncaught(event: LogEvent) -> bool:
    """Return whether an exception is not one of those that Python only prints while a program shuts down."""
    is_raised = event.cause.weight >= Weight.ERROR and find_level(event.text) is LineLevel.FATAL
    if not is_raised and event.cause is not UNEXPLAINED:
        return True
    for line in reversed(read_preceding(event, MAX_TRACEBACK_LINES)):
        if PRINTED.search(line):
            return False
        if not line.startswith((" ", "\t")) and not line.startswith("Traceback"):
            return True
    return True


def is_survived(event: LogEvent) -> bool:
    """Return whether a program went on for long after a notice, and did not repeat it at the end."""
    if weigh(event) >= (Weight.ECHO, 0):
        return False
    last = read_between(event, event.end)[-MAX_END_LINES - 1 :]
    return len(last) > MAX_END_LINES and not any(event.cause.pattern.search(line) for line in last)


def count_ordinary(event: LogEvent, end: int | None) -> int:
    """Return the lines from an event to an offset that belong to no failure, as a program that ended writes none."""
    lines = [line for line in read_between(event, end) if not ENDING.search(line)]
    return sum(1 for line in lines if find_level(line) is not LineLevel.FATAL and classify(line) is None)


def goes_on(event: LogEvent) -> bool:
    """Return whether the log goes on for long behind an event, or with a further run: a program survived it."""
    return event.offset < event.last_start or count_ordinary(event, event.end) >= 2 * MIN_ORDINARY_LINES
