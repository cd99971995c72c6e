"""The nouns of preflight: what is to be launched, what was found out about where, and what checks say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from opsctl.model import JobSpec
from opsctl.preflight.facts import Facts
from opsctl.preflight.recipe import Recipe
from opsctl.settings.loader import Train


class Level(StrEnum):
    """An ERROR keeps the train from being launched, a WARNING does so with --strict."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    level: Level
    what: str
    """One line, with the numbers."""
    remedy: str
    check: str = ""
    source: str = ""
    """Where it is known from: the document, the formula, or the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be launched."""

    train: Train
    spec: JobSpec
    recipe: Recipe

    @property
    def has_gpus(self) -> bool:
        return self.spec.gpus_per_node > 0 or any("gpu" in each for each in self.spec.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: a pure function of what is to be launched and of what was found out."""

    look: Callable[[Order, Facts], Iterator[Finding]]
    source: str


def error(what: str, remedy: str) -> Finding:
    return Finding(level=Level.ERROR, what=what, remedy=remedy)


def warning(what: str, remedy: str) -> Finding:
    return Finding(level=Level.WARNING, what=what, remedy=remedy)


def note(what: str, remedy: str) -> Finding:
    return Finding(level=Level.NOTE, what=what, remedy=remedy)


def judge(checks: Iterable[tuple[str, Check]], order: Order, facts: Facts) -> list[Finding]:
    """All that `checks` have to say: errors first, then warnings, then notes."""
    found = [
        replace(each, check=name, source=check.source) for name, check in checks for each in check.look(order, facts)
    ]
    return sorted(found, key=lambda each: list(Level).index(each.level))
