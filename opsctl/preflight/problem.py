"""The types of preflight: the launch request, the check, and the problem that a check reports."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from itertools import chain
from typing import Any

from opsctl.base.model import JobSpec
from opsctl.base.statements import fill_sentence
from opsctl.base.tables import read_package_table
from opsctl.base.units import parse_slurm_minutes
from opsctl.preflight.facts import Facts
from opsctl.preflight.recipe import Recipe
from opsctl.preflight.trainer_settings import number
from opsctl.settings.loader import TrainSettings
from opsctl.slurm.batch_options import find_values

GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d+)", re.ASCII)
"""The value of an #SBATCH option that asks for GPUs of a node: `gpu:a100:4`, `a100:4`, `4`."""


class ProblemSeverity(StrEnum):
    """An ERROR prevents the launch; a WARNING fails `opsctl preflight --strict`."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


Fact = str | int | float | tuple[str, ...] | None
"""A value in a sentence, None if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake, or one fact worth knowing."""

    severity: ProblemSeverity
    kind: str
    """The name of the check and of the problem in checks.toml, such as `partition.down`."""
    facts: Mapping[str, Fact] = field(hash=False)
    allowed: str = ""
    """What made a warning of this error: --allow or [preflight] allow; empty for every other problem."""

    @property
    def check(self) -> str:
        return self.kind.partition(".")[0]

    @property
    def source(self) -> str:
        """The document, formula, thread or code behind the check."""
        check, _, name = self.kind.partition(".")
        table = read_table()[check]
        return str(table[name].get("source", table["source"]))

    @property
    def what(self) -> str:
        """The problem in one line, with its numbers."""
        return self._fill("what")

    @property
    def remedy(self) -> str:
        return self._fill("remedy")

    def _fill(self, part: str) -> str:
        check, _, name = self.kind.partition(".")
        return fill_sentence(read_table()[check][name][part], self.facts)


@cache
def read_table() -> Mapping[str, Mapping[str, Any]]:
    """Return checks.toml and startup.toml: by check its source, and the sentences and conditions of its problems."""
    return read_package_table("preflight/checks.toml") | read_package_table("preflight/startup.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
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
    def limit_s(self) -> int:
        """The time limit of a task in seconds; 0 if Slurm sets none."""
        return 60 * (parse_slurm_minutes(self.spec.time_limit) or 0)

    @property
    def is_certain(self) -> bool:
        """Whether the numbers of the recipe and of its ranks are those with which the trainer starts."""
        return self.recipe.is_embedded or (bool(self.recipe.refuses) and self._count_ranks()[1])


def count_gpus(spec: JobSpec) -> int:
    """Return the GPUs of a node by [slurm] or its `extra`; 0 if unknown."""
    resources = ",".join(find_values(spec.extra, "gres")).split(",")
    texts = [text for text in resources if text.startswith("gpu:")] + find_values(spec.extra, "gpus-per-node")
    numbers = [int(match[1]) for text in texts if (match := GPUS.fullmatch(text))]
    return max([spec.gpus_per_node, *numbers])


Check = Callable[[LaunchRequest, Facts], Iterator[Problem]]
"""A pure function of the launch request and the facts."""


def error(kind: str, /, **facts: Fact) -> Problem:
    return Problem(severity=ProblemSeverity.ERROR, kind=kind, facts=facts)


def warning(kind: str, /, **facts: Fact) -> Problem:
    return Problem(severity=ProblemSeverity.WARNING, kind=kind, facts=facts)


def note(kind: str, /, **facts: Fact) -> Problem:
    return Problem(severity=ProblemSeverity.NOTE, kind=kind, facts=facts)


def error_if(is_certain: bool, kind: str, /, **facts: Fact) -> Problem:  # noqa: FBT001 (reads as a condition)
    """Return an error if `is_certain`, else a warning."""
    return error(kind, **facts) if is_certain else warning(kind, **facts)


def find_near(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most like `word`; empty if none is."""
    return next(iter(get_close_matches(word, known, 1)), "")


def judge(checks: Iterable[Check], request: LaunchRequest, facts: Facts) -> list[Problem]:
    """Run all checks; return errors first, then warnings, then notes."""
    problems = chain.from_iterable(check(request, facts) for check in checks)
    return sort_problems(problems)


def sort_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Return errors first, then warnings, then notes."""
    return sorted(problems, key=lambda problem: list(ProblemSeverity).index(problem.severity))
