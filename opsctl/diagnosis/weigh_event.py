"""Weigh the events of a log: how much each explains, and whether the program survived it."""

from itertools import takewhile

from opsctl.base.tables import read_package_table, read_patterns
from opsctl.diagnosis.causes import (
    OF_PROGRAM,
    OF_TRAINER,
    UNEXPLAINED,
    CauseKind,
    Confidence,
    LineLevel,
    Weight,
    classify,
    find_level,
    is_exception,
)
from opsctl.diagnosis.excerpt import collect_excerpt, read_between, read_preceding
from opsctl.diagnosis.scan_logs import LogEvent

PATTERNS = read_patterns("diagnosis/patterns.toml", "ends")
MAX_TRACEBACK_LINES = 60
MAX_END_LINES = 8
"""Lines at the end of a log among which a notice may be why a program ended without an error."""
MIN_ORDINARY_LINES = 12
"""Ordinary lines behind a failure after which the program went on."""
_WEIGHTS: dict[str, dict[str, int]] = read_package_table("diagnosis/patterns.toml")["weights"]
MESSAGE = (Weight.ERROR, 1)
"""The weight of a cause that a program only prints."""


def weigh(event: LogEvent) -> tuple[Weight, int]:
    """Return how much an event explains: its weight, and an order among those of one weight."""
    cause = event.cause
    if cause.weight >= Weight.ERROR:
        return _weigh_error(event)
    if cause.weight is Weight.DEATH:
        return Weight.DEATH, _WEIGHTS["deaths"].get(cause.name, 3)
    if cause.name in _WEIGHTS["little"]:
        return Weight.DEATH, _WEIGHTS["little"][cause.name]
    if event.peer and cause.weight is Weight.ECHO:
        return Weight.DEATH, 0
    return cause.weight, int(cause.kind is CauseKind.NUMERIC)


def _weigh_error(event: LogEvent) -> tuple[Weight, int]:
    """Weigh an error. A program survives what it prints without the mark of an error, or without raising it.

    So an exception later explains more. A bare exit code explains less than any message.
    """
    cause = event.cause
    if cause.kind not in OF_PROGRAM:
        return cause.weight, 3 * _is_killed_for_memory(event)
    if is_exception(event.text):
        return cause.weight, 2 * (cause.sure is not Confidence.POSSIBLE)
    if find_level(event.text) is LineLevel.FATAL:
        return MESSAGE if cause.weight is Weight.CAUSE else (Weight.ERROR, 0)
    return Weight.DEATH, 4 if cause.weight is Weight.CAUSE else 2


def _is_killed_for_memory(event: LogEvent) -> bool:
    """Return whether Slurm or the kernel ended a process for its memory: exceptions before follow from that end."""
    return event.cause.name == "host-memory-full" and PATTERNS["system"].search(event.text) is not None


def is_uncaught(event: LogEvent, caught: str = "printed") -> bool:
    """Return whether an exception is not one of those that Python only prints while a program shuts down.

    With `threads`, nor one that ended a thread: threads write at the same time, and their exceptions stand together.
    """
    is_raised = event.cause.weight >= Weight.ERROR and find_level(event.text) is LineLevel.FATAL
    if not is_raised and event.cause is not UNEXPLAINED:
        return True
    for line in reversed(read_preceding(event, MAX_TRACEBACK_LINES)):
        if PATTERNS[caught].search(line):
            return False
        is_other = caught == "threads" and is_exception(line)
        if not line.startswith((" ", "\t", "Traceback")) and not is_other:
            return True
    return True


def is_survived(event: LogEvent) -> bool:
    """Return whether a program went on for long after a notice, and did not repeat it at the end."""
    if weigh(event) >= (Weight.ECHO, 0):
        return False
    last = read_between(event, event.end)[-MAX_END_LINES - 1 :]
    return len(last) > MAX_END_LINES and not any(event.cause.pattern.search(line) for line in last)


def is_only_printed(event: LogEvent) -> bool:
    """Return whether a program printed the line, and neither raised it nor marked it as an error."""
    return event.cause.kind in OF_TRAINER and find_level(event.text) is not LineLevel.FATAL


def count_ordinary(event: LogEvent, end: int | None) -> int:
    """Return the lines from an event to an offset that belong to no failure, as a program that ended writes none."""
    before = takewhile(lambda line: not PATTERNS["report"].search(line), read_between(event, end))
    own = (line for line in before if not PATTERNS["ending"].search(line))
    return sum(1 for line in own if find_level(line) is not LineLevel.FATAL and classify(line) is None)


def goes_on(event: LogEvent, least: int = 2 * MIN_ORDINARY_LINES) -> bool:
    """Return whether the log has `least` ordinary lines behind an event, or a further run: a program survived it."""
    return event.offset < event.last_start or count_ordinary(event, event.end) >= least


def is_echo(event: LogEvent) -> bool:
    """Return whether a traceback is the launcher's own, or only reports a lost connection to another rank."""
    if event.cause is not UNEXPLAINED:
        return False
    excerpt = collect_excerpt(event)
    if any(PATTERNS["launcher"].search(line) for line in excerpt):
        return True
    cause = classify(excerpt[-1])
    return cause is not None and cause.weight is Weight.ECHO
