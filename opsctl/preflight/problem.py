"""The types of preflight: the launch request, the check, and the problem that a check reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from opsctl.base.model import JobSpec
from opsctl.preflight.facts import Facts
from opsctl.preflight.recipe import Recipe
from opsctl.preflight.trainer_settings import number
from opsctl.settings.loader import TrainSettings
from opsctl.slurm.batch_options import find_values

GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d+)", re.ASCII)
"""The value of an #SBATCH option that asks for GPUs of a node: `gpu:a100:4`, `a100:4`, `4`."""


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

    @property
    def gpus_per_node(self) -> int:
        """The GPUs of a node by [slurm] or its `extra`; 0 if unknown."""
        return count_gpus(self.spec)

    @property
    def texts(self) -> dict[str, str]:
        """The command and the setup lines as texts, by their place in TRAIN.toml."""
        return {"command": "\n".join(self.train.command), "[setup] lines": "\n".join(self.train.setup.lines)}

    @property
    def ranks_per_node(self) -> int:
        """The ranks that a node runs, as far as known: of Slurm, or of a launcher that Slurm starts once on a node."""
        return self._count_ranks()[0]

    @property
    def world(self) -> int:
        """The ranks of a task, as far as known."""
        return self.spec.nodes * self.ranks_per_node

    def _count_ranks(self) -> tuple[int, bool]:
        """Return the ranks of a node, and whether the number is certain."""
        spec, flags = self.spec, self.recipe.flags
        if spec.processes_per_node > 1 or self.recipe.is_embedded:
            return spec.processes_per_node, True
        count = number(flags, "nproc-per-node", "num-gpus")
        if count is not None:
            return max(1, count), True
        per_node = self.recipe.devices or self.gpus_per_node or 1
        return per_node, self.gpus_per_node == 1 and self.recipe.devices in {None, 1}

    @property
    def is_certain(self) -> bool:
        """Whether the numbers of the recipe and of its ranks are those with which the trainer starts."""
        return self.recipe.is_embedded or (bool(self.recipe.refuses) and self._count_ranks()[1])

    def refuse(self, what: str, remedy: str) -> Problem:
        """Return an error if the numbers behind it are certain, else a warning."""
        return error(what, remedy) if self.is_certain else warning(what, remedy)


def count_gpus(spec: JobSpec) -> int:
    """Return the GPUs of a node by [slurm] or its `extra`; 0 if unknown."""
    resources = ",".join(find_values(spec.extra, "gres")).split(",")
    texts = [text for text in resources if text.startswith("gpu:")] + find_values(spec.extra, "gpus-per-node")
    numbers = [int(match[1]) for text in texts if (match := GPUS.fullmatch(text))]
    return max([spec.gpus_per_node, *numbers])


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
