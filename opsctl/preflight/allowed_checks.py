"""Errors that the user allows by `--allow CHECK` or `[preflight] allow`: they become warnings, and are journalled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from opsctl.base.errors import InputError
from opsctl.launch.submit import AllowedError
from opsctl.preflight.checks import CHECKS
from opsctl.preflight.problem import Problem, ProblemLevel, find_near, read_table
from opsctl.settings.loader import TrainSettings

BEYOND_CHECKS = frozenset({"container"})
"""Names of problems that are not in CHECKS, and that can be allowed."""


def find_why_it_must_pass(check: str) -> str:
    """Return why errors of this check cannot be allowed; empty if they can."""
    return str(read_table().get(check, {}).get("must_pass", ""))


def find_allowances(train: TrainSettings, options: Sequence[str]) -> dict[str, str]:
    """Return what allows each check. Raises InputError for a check that does not exist or must pass."""
    settings = dict.fromkeys(train.preflight.allow, "[preflight] allow")
    allowances = {**settings, **dict.fromkeys(options, "--allow")}
    known = CHECKS.keys() | BEYOND_CHECKS
    for check, origin in allowances.items():
        if why := find_why_it_must_pass(check):
            raise InputError(f"{origin} {check}: this check must pass: {why}")
        if check not in known:
            near = find_near(check, known)
            raise InputError(
                f"{origin} {check}: there is no such check",
                hint=f"did you mean {near}?" if near else "opsctl preflight shows the check of each problem",
            )
    return allowances


def allow_errors(problems: Iterable[Problem], allowances: Mapping[str, str]) -> list[Problem]:
    """Return the problems with every allowed error as a warning."""
    levels = list(ProblemLevel)
    changed = [_allow(problem, allowances.get(problem.check, "")) for problem in problems]
    return sorted(changed, key=lambda problem: levels.index(problem.level))


def _allow(problem: Problem, origin: str) -> Problem:
    if not origin or problem.level is not ProblemLevel.ERROR:
        return problem
    return replace(problem, level=ProblemLevel.WARNING, allowed=origin)


def list_allowed(problems: Iterable[Problem]) -> tuple[AllowedError, ...]:
    """Return the allowed errors, for the journal."""
    return tuple(
        AllowedError(check=problem.check, what=problem.what, origin=problem.allowed)
        for problem in problems
        if problem.allowed
    )
