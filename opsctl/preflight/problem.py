"""The nouns of preflight: what is to be launched, what was found out about where, and what checks say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from opsctl.model import JobSpec
from opsctl.preflight.facts import Facts
from opsctl.preflight.recipe import Recipe
from opsctl.settings.loader import TrainSettings


class ProblemLevel(StrEnum):
    """An ERROR keeps the train from being launched, a WARNING does so with --strict."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, or worth knowing."""

    level: ProblemLevel
    what: str
    """One line, with the numbers."""
    remedy: str
    check: str = ""
    source: str = ""
    """Where it is known from: the document, the formula, or the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What is to be launched."""

    train: TrainSettings
    spec: JobSpec
    recipe: Recipe

    @property
    def has_gpus(self) -> bool:
        return self.spec.gpus_per_node > 0 or any("gpu" in each for each in self.spec.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: a pure function of what is to be launched and of what was found out."""

    check: Callable[[LaunchRequest, Facts], Iterator[Problem]]
    source: str


def error(what: str, remedy: str) -> Problem:
    return Problem(level=ProblemLevel.ERROR, what=what, remedy=remedy)


def warning(what: str, remedy: str) -> Problem:
    return Problem(level=ProblemLevel.WARNING, what=what, remedy=remedy)


def note(what: str, remedy: str) -> Problem:
    return Problem(level=ProblemLevel.NOTE, what=what, remedy=remedy)


def judge(checks: Iterable[tuple[str, Check]], request: LaunchRequest, facts: Facts) -> list[Problem]:
    """All that `checks` have to say: errors first, then warnings, then notes."""
    problems = [
        replace(problem, check=name, source=check.source)
        for name, check in checks
        for problem in check.check(request, facts)
    ]
    return sorted(problems, key=lambda problem: list(ProblemLevel).index(problem.level))
