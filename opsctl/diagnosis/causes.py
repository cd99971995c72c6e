"""Classify single log lines: by the patterns of the catalogue of causes, and by how a program writes the line."""

import re
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import cache
from typing import Any

from opsctl.base.tables import read_package_table
from opsctl.nodes.health.kernel_lines import find_cause


class CauseKind(StrEnum):
    """The class of a cause. NONE: the attempt ended as planned."""

    NODE = "node"
    GPU = "gpu"
    NETWORK = "network"
    STORAGE = "storage"
    MEMORY = "memory"
    DATA = "data"
    CODE = "code"
    CONFIG = "config"
    """Settings, limits of the user, ports, interfaces."""
    NUMERIC = "numeric"
    SLURM = "slurm"
    HANG = "hang"
    TIME_LIMIT = "time limit"
    PREEMPTED = "preempted"
    SWITCH = "switch"
    UNKNOWN = "unknown"
    NONE = "none"


class Scope(StrEnum):
    """The faulty part."""

    GPU = "gpu"
    NODE = "node"
    RANK = "rank"
    JOB = "job"
    SITE = "site"


class Weight(IntEnum):
    """How much a line explains. A later cause outweighs an earlier echo.

    NOTE: trainings survive such lines. ECHO: a rank reports the end of another rank. DEATH: a rank ended for an unnamed
    reason. ERROR: an error that also follows from other errors. CAUSE: the line explains the end.
    """

    NOTE = 0
    ECHO = 1
    DEATH = 2
    ERROR = 3
    CAUSE = 4


class LineLevel(IntEnum):
    """The mark that a program puts on a line."""

    NOTICE = 0
    """A warning, information, or a line that says how the program goes on."""
    PLAIN = 1
    """No mark: output of the program or of a library."""
    FATAL = 2
    """An exception, or an error of a launcher, the shell, the kernel or Slurm."""


class Confidence(StrEnum):
    """How sure a cause is if its line is in the log."""

    CERTAIN = "certain"
    """The line states the cause."""
    LIKELY = "likely"
    """The usual cause of the line; others exist."""
    POSSIBLE = "possible"
    """The line is a symptom with several causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row of the catalogue."""

    name: str
    pattern: re.Pattern[str]
    kind: CauseKind
    scope: Scope
    weight: Weight
    says: str
    advice: str
    source: str
    sure: Confidence
    link: str
    once_excluded: str = ""
    """What is left to do once the node is excluded; empty if the advice is the same then."""
    quotes: bool = False
    """Whether the line itself completes the summary."""
    later: str = ""
    """Name of the row that applies instead once the train has done steps."""
    near: re.Pattern[str] | None = None
    """Lines before the event after which another row applies."""
    after: tuple[str, ...] = ()
    """Names of causes after which another row applies, wherever their lines stand."""
    becomes: str = ""
    """Name of the row that applies after a line of `near`, or after one of the causes of `after`."""


TABLES = ("own", "gpu", "limits", "storage", "slurm", "launch", "network", "environment", "settings", "program", "end")
"""The tables of the catalogue in the order of their search, without `.toml`."""
MAX_AROUND = 1000
"""Characters before and behind a match that may say that the fault is absent: a line may be long."""
OF_HARDWARE = frozenset({CauseKind.GPU, CauseKind.NODE})
"""Lines that deny a fault of these classes, or ask about one, are everyday output of checks and monitors."""
OF_PROGRAM = frozenset({CauseKind.CODE, CauseKind.CONFIG, CauseKind.DATA, CauseKind.NETWORK})
"""Classes of the program, its settings and its surroundings."""
OF_TRAINER = OF_PROGRAM | {CauseKind.NUMERIC}
"""Programs survive what they log as a warning of these classes. Hardware faults are logged as warnings as well."""


@cache
def causes() -> tuple[Cause, ...]:
    """Return the rows of the catalogue. The first matching row classifies a line."""
    rows: list[Cause] = []
    for table in TABLES:
        rows += [_cause(dict(row)) for row in read_table(f"catalogue/{table}")["cause"]]
    return tuple(rows)


def read_table(name: str) -> dict[str, Any]:
    """Return a table of this package, without `.toml`."""
    return read_package_table(f"diagnosis/{name}.toml")


def _cause(row: dict[str, Any]) -> Cause:
    parsed = {
        "pattern": re.compile("|".join(row.pop("patterns"))),
        "kind": CauseKind(row.pop("class")),
        "scope": Scope(row["scope"]),
        "weight": Weight[row.get("weight", "cause").upper()],
        "sure": Confidence(row["sure"]),
        "near": re.compile(row["near"]) if "near" in row else None,
    }
    if "advice" not in row:
        parsed["advice"] = f"Exclude the node; {row['once_excluded']}"
    return Cause(**row | parsed)


UNEXPLAINED = _cause(dict(read_table("traceback")))
"""The cause of a traceback that no row of the catalogue matches."""


def find_row(name: str) -> Cause | None:
    """Return the row of a cause; None for a cause of another version, and for what is not in the catalogue."""
    return next((row for row in causes() if row.name == name), None)


def classify(text: str) -> Cause | None:
    """Classify a line without its prefix. Return None if no pattern matches. Never raises."""
    cause = _find_row(text)
    if cause is None:
        return None
    if cause.weight is Weight.NOTE:
        return _as(cause, Weight.ERROR) if is_exception(text) else cause
    return _as(cause, Weight.NOTE) if _is_survived(cause, text) else cause


def _find_row(text: str) -> Cause | None:
    """Return the row of a line. Of a line of the kernel, the tables of the health checks decide the row."""
    rows = (*causes(), UNEXPLAINED)
    known = find_cause(text)
    if known is not None:
        return next((cause for cause in rows if cause.name == known), None)
    return next((cause for cause in rows if _matches(cause, text)), None)


def _matches(cause: Cause, text: str) -> bool:
    """Return whether a row matches a line that does not say that the fault is absent."""
    if cause.kind not in OF_HARDWARE:
        return cause.pattern.search(text) is not None
    return any(not _is_all_clear(match) for match in cause.pattern.finditer(text))


def _is_all_clear(match: re.Match[str]) -> bool:
    """Return whether a match is denied, counted as zero, asked about or only a threshold."""
    patterns, text = _level_patterns(), match.string
    before, behind = (
        text[max(0, match.start() - MAX_AROUND) : match.start()],
        text[match.end() : match.end() + MAX_AROUND],
    )
    is_denied = patterns["all_clear_around"].search(f"{before}\0{behind}")
    return bool(is_denied or patterns["all_clear_within"].search(match[0][:MAX_AROUND]))


def _is_survived(cause: Cause, text: str) -> bool:
    """Return whether a program logs the line as a warning or as information: the program went on."""
    if "NCCL WARN" in text:
        return False
    if "NCCL INFO" in text:
        return cause.weight > Weight.ECHO
    if cause.weight < Weight.ERROR or (cause.weight is Weight.CAUSE and cause.kind not in OF_TRAINER):
        return False
    return find_level(text) is LineLevel.NOTICE


@cache
def _as(cause: Cause, weight: Weight) -> Cause:
    """Return a cause with the weight of a line that is written as a warning, or as a last exception."""
    return replace(cause, weight=weight, sure=Confidence.POSSIBLE if weight is Weight.NOTE else cause.sure)


def is_exception(text: str) -> bool:
    """Return whether a line is the last of a traceback: the exception and its message."""
    return _level_patterns()["exception"].search(text) is not None


def find_level(text: str) -> LineLevel:
    """Return how a line is written. An exception is fatal even where its message speaks of a warning."""
    if is_exception(text):
        return LineLevel.FATAL
    patterns = _level_patterns()
    if patterns["notice"].search(text) or patterns["goes_on"].search(text):
        return LineLevel.NOTICE
    return LineLevel.FATAL if patterns["fatal"].search(text) else LineLevel.PLAIN


@cache
def _level_patterns() -> dict[str, re.Pattern[str]]:
    table = {mark: "|".join(patterns) for mark, patterns in read_table("line_levels")["marks"].items()}
    table["goes_on"] = rf"(?i)\b(?:{table['goes_on']})"
    return {mark: re.compile(pattern) for mark, pattern in table.items()}
