"""Findings of watchdogs, as values: severity, kind, numbers, nodes, since which step. Texts are rendered from them."""

import math
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import datetime
from enum import StrEnum

from opsctl.base.statements import NO_REMEDY, Remedy, Statement, say, say_below


class Severity(StrEnum):
    """Severity of a finding. UNKNOWN is neither good nor bad: the probe got no data."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """The worse, the higher: from 0 for OK to 3 for CRITICAL, in the order of the members."""
        return list(Severity).index(self)


ROLLBACK = "rollback.to"
"""Kind of the statement that proposes a rollback to a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The severity of one thing now, as judged by one watchdog. Code decides on the fields, people read the texts."""

    key: str
    """Names the thing, the same in every cycle: `<watchdog>/<train or site>[/<thing>]`, such as `hang/tiny-gpt`."""
    severity: Severity
    says: Statement
    """What was found, with its numbers."""
    train: str = ""
    node: str = ""
    """A folded node list."""
    cause: str = ""
    """Name of the diagnosed cause."""
    since: datetime | None = None
    since_step: int | None = None
    """The first step of the trouble: a checkpoint of an earlier step is from before it."""
    wants_rollback: bool = False
    """Whether the training should be repeated from an earlier checkpoint."""
    names: tuple[str, ...] = ()
    """File names in the log lines of a failure, one of which may be the checkpoint that could not be loaded."""
    details: tuple[Statement, ...] = ()
    evidence: tuple[str, ...] = ()
    """Lines quoted from logs and programs."""
    also_hit: tuple[str, ...] = ()
    """Other trains that suffer from the same cause."""
    actions: tuple[Statement, ...] = ()
    """Actions that opsctl has taken, if any."""
    fix: Remedy = NO_REMEDY
    roll_back: Statement | None = None
    """The checkpoint to roll back to, or why there is none."""
    is_certain: bool = False
    """Whether the event is past, so that an alert needs no confirmation by a second cycle."""

    @property
    def is_ok(self) -> bool:
        return self.severity is Severity.OK

    @property
    def summary(self) -> str:
        """One line with the figures and their limit."""
        return say(self.says) + self._name_others()

    @property
    def brief(self) -> str:
        """The summary for a place that names the train already."""
        return say_below(self.says, "train") + self._name_others()

    @property
    def names_train(self) -> bool:
        return "train" in self.says.facts

    def _name_others(self) -> str:
        others = Statement(kind="site.also_hit", facts={"trains": ", ".join(self.also_hit)})
        return say(others) if self.also_hit else ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines that support the finding."""
        return (*map(say, self.details), *self.evidence)

    @property
    def done(self) -> tuple[str, ...]:
        return tuple(map(say, self.actions))

    @property
    def remedy(self) -> str:
        """The command to type, or the action to take, now."""
        return str(self.fix)

    @property
    def rollback(self) -> str:
        return say(self.roll_back) if self.roll_back else ""

    @property
    def rollback_step(self) -> int | None:
        """The step of the checkpoint to roll back to; None if no checkpoint is proposed."""
        step = self.roll_back.facts.get("step") if self.roll_back and self.roll_back.kind == ROLLBACK else None
        return step if isinstance(step, int) else None

    def with_texts(self) -> dict[str, object]:
        """Return the values of the finding, and the texts that are rendered from them."""
        texts = {name: getattr(self, name) for name in ("summary", "done", "remedy", "rollback")}
        return {**asdict(self), "kind": self.says.kind, **texts, "evidence": self.lines}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of severity. Alerts are made from transitions only."""

    id: str
    """Permanent id, from which message ids and deduplication keys are derived."""
    finding: Finding
    before: Severity
    at: datetime


def to_data(value: object) -> object:
    """Return `value` for `--json`, as `asdict` does, with the texts of every finding beside its values.

    nan and infinity, which JSON does not have, are null.
    """
    if isinstance(value, Finding):
        return to_data(value.with_texts())
    if is_dataclass(value) and not isinstance(value, type):
        return {place.name: to_data(getattr(value, place.name)) for place in fields(value)}
    if isinstance(value, tuple | list):
        return [to_data(item) for item in value]
    if isinstance(value, dict):
        return {name: to_data(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
