"""Classify single log lines by the patterns of causes.toml."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache
from importlib.resources import files


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

    DEATH: a rank ended for an unnamed reason. ECHO: a rank reports the end of another rank.
    """

    ECHO = 0
    DEATH = 1
    CAUSE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row of causes.toml."""

    name: str
    pattern: re.Pattern[str]
    kind: CauseKind
    scope: Scope
    weight: Weight
    says: str
    advice: str
    source: str
    later: str = ""
    """Name of the row that applies instead once the train has done steps."""


UNEXPLAINED = Cause(
    name="traceback",
    pattern=re.compile(r"Traceback \(most recent call last\)|Fatal Python error"),
    kind=CauseKind.UNKNOWN,
    scope=Scope.RANK,
    weight=Weight.DEATH,
    says="an error that no known pattern matches",
    advice="Read the traceback. A new row in opsctl/diagnosis/causes.toml would name the error.",
    source="",
)
"""The cause of a traceback that no row of the table matches."""


@cache
def causes() -> tuple[Cause, ...]:
    """Return the rows of causes.toml. The first matching row classifies a line."""
    text = files("opsctl.diagnosis").joinpath("causes.toml").read_text()
    return tuple(_cause(row) for row in tomllib.loads(text)["cause"])


def _cause(row: dict[str, str]) -> Cause:
    return Cause(
        name=row["name"],
        pattern=re.compile(row["pattern"]),
        kind=CauseKind(row["class"]),
        scope=Scope(row["scope"]),
        weight=Weight[row.get("weight", "cause").upper()],
        says=row["says"],
        advice=row["advice"],
        source=row["source"],
        later=row.get("later", ""),
    )


def classify(text: str) -> Cause | None:
    """Classify a line without its prefix. Return None if no pattern matches. Never raises."""
    rows = (*causes(), UNEXPLAINED)
    return next((cause for cause in rows if cause.pattern.search(text)), None)
