"""The types of preflight: the launch request, the check, and the problem that a check reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from opsctl.model import JobSpec
from opsctl.preflight.facts import Facts
from opsctl.preflight.recipe import Recipe
from opsctl.settings.loader import TrainSettings


class ProblemLevel(StrEnum):
    """An ERROR prevents the launch; a WARNING fails `opsctl preflight --strict`."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake, or one fact worth knowing."""

    level: ProblemLevel
    what: str
    """The problem in one line, with its numbers."""
    remedy: str
    check: str = ""
    source: str = ""
    """The document, formula or thread behind the check."""
    allowed: str = ""
    """What made a warning of this error: --allow or [preflight] allow; empty for every other problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """The train that is to be launched."""

    train: TrainSettings
    spec: JobSpec
    recipe: Recipe

    @property
    def has_gpus(self) -> bool:
        return self.spec.gpus_per_node > 0 or any("gpu" in option for option in self.spec.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: a pure function of the launch request and the facts."""

    check: Callable[[LaunchRequest, Facts], Iterator[Problem]]
    source: str


def error(what: str, remedy: str) -> Problem:
    return Problem(level=ProblemLevel.ERROR, what=what, remedy=remedy)


def warning(what: str, remedy: str) -> Problem:
    return Problem(level=ProblemLevel.WARNING, what=what, remedy=remedy)


def note(what: str, remedy: str) -> Problem:
    return Problem(level=ProblemLevel.NOTE, what=what, remedy=remedy)


def judge(checks: Iterable[tuple[str, Check]], request: LaunchRequest, facts: Facts) -> list[Problem]:
    """Run all checks; return errors first, then warnings, then notes."""
    problems: list[Problem] = []
    for name, check in checks:
        problems += [replace(problem, check=name, source=check.source) for problem in check.check(request, facts)]
    return sorted(problems, key=lambda problem: list(ProblemLevel).index(problem.level))
