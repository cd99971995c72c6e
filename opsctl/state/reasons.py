"""Why a train is held or cancelled, and why nodes are excluded: the facts, and their words in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ReasonKind(StrEnum):
    """The classes of reasons."""

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
    minutes: float | None = None
    """The length below which an attempt is short."""
    step: int | None = None
    """The step that no attempt exceeded; None if no step is known."""
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
        render = _WORDS.get(self.kind, _render_text)
        return render(self)


def as_written(text: str) -> Reason:
    """Return the reason that a person gave."""
    return Reason(text=text)


def _render_text(reason: Reason) -> str:
    return reason.text or f"{reason.kind}, a reason of a newer version of opsctl"


def _render_as_written(reason: Reason) -> str:
    return reason.text


def _render_stuck(reason: Reason) -> str:
    return "; ".join(filter(None, (reason.text, _STUCK_WORDS[reason.kind](reason), reason.needed_change)))


def _render_crash_loop(reason: Reason) -> str:
    attempts = ", ".join(reason.attempts)
    return f"{reason.count} attempts in a row under {reason.minutes:g} min without progress: {attempts}"


def _render_fault_loop(reason: Reason) -> str:
    attempts = f"{reason.count} attempts in a row" if reason.count > 1 else "an attempt"
    return f"a {reason.cause_kind} fault ended {attempts} without progress: {reason.cause}"


def _render_standstill(reason: Reason) -> str:
    reached = " and left no new checkpoint" if reason.step is None else f" beyond step {reason.step}"
    return f"{reason.count} attempts in a row made no progress{reached}: {', '.join(reason.attempts)}"


def _render_switch(reason: Reason) -> str:
    return f"{reason.switch} switch by {reason.by}" + (f": {reason.text}" if reason.text else "")


def _render_diagnosis(reason: Reason) -> str:
    """`gpu: a GPU has fallen off the bus (node003, rank 5)`."""
    rank = f"rank {reason.rank}" if reason.rank is not None else ""
    place = ", ".join(filter(None, (reason.node, rank)))
    return f"{reason.cause_kind}: {reason.text}" + (f" ({place})" if place else "")


_STUCK_WORDS: Mapping[str, Callable[[Reason], str]] = {
    ReasonKind.CRASH_LOOP: _render_crash_loop,
    ReasonKind.FAULT_LOOP: _render_fault_loop,
    ReasonKind.STANDSTILL: _render_standstill,
}
_WORDS: Mapping[str, Callable[[Reason], str]] = {
    ReasonKind.AS_WRITTEN: _render_as_written,
    ReasonKind.DUPLICATE: lambda _: "the same submission arrived twice",
    ReasonKind.NOT_NEEDED: lambda reason: f"{reason.attempt} {reason.outcome}: {reason.text}",
    ReasonKind.ENDED: _render_as_written,
    ReasonKind.HUNG: _render_as_written,
    ReasonKind.ROLLBACK: _render_as_written,
    ReasonKind.SWITCH: _render_switch,
    ReasonKind.DIAGNOSIS: _render_diagnosis,
    **dict.fromkeys(_STUCK_WORDS, _render_stuck),
}
