"""Why a train is held or cancelled, and why nodes are excluded: the facts, and their words in one place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from opsctl.base.tables import read_package_table


class ReasonKind(StrEnum):
    AS_WRITTEN = "as-written"
    """The words of a person, or of a version of opsctl whose journals had no classes of reasons."""
    DUPLICATE = "duplicate"
    """One submission arrived twice, and the later array is not needed. The train goes on."""
    NOT_NEEDED = "not-needed"
    """An attempt finished the train, or was killed: no queued task is needed."""
    ENDED = "ended"
    """An attempt ended in a way after which the next must not start by itself."""
    CRASH_LOOP = "crash-loop"
    FAULT_LOOP = "fault-loop"
    STANDSTILL = "standstill"
    SWITCH = "switch"
    HUNG = "hung"
    ROLLBACK = "rollback"
    DIAGNOSIS = "diagnosis"
    """The diagnosed cause lies with the nodes."""


STUCK = frozenset({ReasonKind.CRASH_LOOP, ReasonKind.FAULT_LOOP, ReasonKind.STANDSTILL})
"""The reasons of a train that does not advance."""


class NeededChange(StrEnum):
    """What has to change before the release of a held train helps."""

    CODE = "code"
    CONFIG = "config"
    MEMORY = "memory"
    STORAGE = "storage"
    NODES = "nodes"
    CAUSE = "cause"


CHANGES: Mapping[str, tuple[str, str]] = {
    NeededChange.CODE: ("change the code or the settings", "opsctl edit"),
    NeededChange.CONFIG: ("change the settings or the environment", "opsctl edit"),
    NeededChange.MEMORY: ("lower the use of memory in the settings", "opsctl edit"),
    NeededChange.STORAGE: ("repair the storage or free space", ""),
    NeededChange.NODES: ("put more nodes in service, or exclude fewer", ""),
    NeededChange.CAUSE: ("find and remove the cause", "opsctl why"),
}
"""Each change in words, and the command for it, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason. A kind or a change that this version does not know is kept as it was written."""

    kind: str = ReasonKind.AS_WRITTEN
    text: str = ""
    """The words of a person, of a program, or of the attempt's end."""
    attempt: str = ""
    """The attempt whose end led to the action."""
    outcome: str = ""
    attempts: tuple[str, ...] = ()
    """The attempts in a row that did not advance the train, the oldest first, with their outcomes."""
    count: int = 0
    minutes: float = 0.0
    """The length below which an attempt is short."""
    step: int | None = None
    """The step that no attempt exceeded; None if no step is known."""
    epoch: float | None = None
    """The epoch that no attempt exceeded, if no step is known."""
    is_progress_unknown: bool = False
    """Whether no attempt shows a step, an epoch or a checkpoint, so that a stuck train may advance nevertheless."""
    cause_kind: str = ""
    cause: str = ""
    node: str = ""
    rank: int | None = None
    change: str = ""
    by: str = ""
    """The user who armed the switch."""
    switch: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_stuck(self) -> bool:
        """Whether the train is held because it does not advance."""
        return self.kind in STUCK

    @property
    def needed_change(self) -> str:
        """What has to change before a release: `before a release, repair the storage`; empty if nothing is known."""
        if self.change not in CHANGES:
            return ""
        words, command = CHANGES[self.change]
        return f"before a release, {words}" + (f" ({command})" if command else "")

    def __str__(self) -> str:
        if self.kind not in _WORDS:
            return self.text or f"{self.kind}, a reason of a newer version of opsctl"
        words = _WORDS[self.kind].format(reason=self, **self._list_phrases())
        unknown = _UNKNOWN_PROGRESS if self.is_progress_unknown else ""
        return "; ".join(filter(None, (self.text, words, unknown, self.needed_change))) if self.is_stuck else words

    def _list_phrases(self) -> dict[str, str]:
        """Return the parts of the words that depend on what is known."""
        reached = "" if self.epoch is None else f"epoch {self.epoch:g}"
        reached = reached if self.step is None else f"step {self.step}"
        rank = f"rank {self.rank}" if self.rank is not None else ""
        place = ", ".join(filter(None, (self.node, rank)))
        return {
            "attempts": ", ".join(self.attempts),
            "in_a_row": f"{self.count} attempts in a row" if self.count > 1 else "an attempt",
            "reached": f" beyond {reached}" if reached else " and left no new checkpoint",
            "place": f" ({place})" if place else "",
            "says": f": {self.text}" if self.text else "",
        }


def as_written(text: str) -> Reason:
    """Return the reason that a person gave."""
    return Reason(text=text)


_UNKNOWN_PROGRESS = "neither steps nor checkpoints are known: [progress] of TRAIN.toml describes them"
_WORDS: Mapping[str, str] = read_package_table("state/reasons.toml")
"""Each class in words. For a stuck train, the end of its last attempt and the needed change are added."""
