"""What single lines of logs mean: patterns that are data, in causes.toml beside this file."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cache
from importlib.resources import files


class CauseKind(StrEnum):
    """Whose fault an end was. NONE is for attempts that ended as they should."""

    NODE = "node"
    GPU = "gpu"
    NETWORK = "network"
    STORAGE = "storage"
    MEMORY = "memory"
    DATA = "data"
    CODE = "code"
    TIME_LIMIT = "time limit"
    PREEMPTED = "preempted"
    SWITCH = "switch"
    UNKNOWN = "unknown"
    NONE = "none"


class Scope(StrEnum):
    """What is bad, or to be looked at."""

    GPU = "gpu"
    NODE = "node"
    RANK = "rank"
    JOB = "job"
    SITE = "site"


class Weight(IntEnum):
    """How much a line explains. A later cause outweighs an earlier echo."""

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
    """The row that it means instead, once steps were done."""


UNEXPLAINED = Cause(
    name="traceback", pattern=re.compile(r"Traceback \(most recent call last\)|Fatal Python error"),
    kind=CauseKind.UNKNOWN, scope=Scope.RANK, weight=Weight.DEATH, says="an error that is in no table",
    advice="See the traceback. A pattern for it would be a row in opsctl/diagnosis/causes.toml.", source="",
)  # fmt: skip
"""What any traceback says, where no row knows better."""


@cache
def causes() -> tuple[Cause, ...]:
    """The table. The first row that matches a line is what the line says."""
    text = files("opsctl.diagnosis").joinpath("causes.toml").read_text()
    return tuple(_cause(row) for row in tomllib.loads(text)["cause"])


def _cause(row: dict[str, str]) -> Cause:
    return Cause(
        name=row["name"], pattern=re.compile(row["pattern"]), kind=CauseKind(row["class"]), scope=Scope(row["scope"]),
        weight=Weight[row.get("weight", "cause").upper()], says=row["says"], advice=row["advice"],
        source=row["source"], later=row.get("later", ""),
    )  # fmt: skip


def classify(text: str) -> Cause | None:
    """What a line says, without its prefix; None for nothing that is known. Never raises."""
    found = next((cause for cause in causes() if cause.pattern.search(text)), None)
    return found or (UNEXPLAINED if UNEXPLAINED.pattern.search(text) else None)
