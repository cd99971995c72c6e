"""The first cause of an end, not its echo: one rank dies, and all others tell that they lost it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from opsctl.diagnosis.causes import UNEXPLAINED, Cause, CauseKind, Scope, Weight, causes, classify
from opsctl.diagnosis.excerpt import excerpt, when
from opsctl.diagnosis.exit_reasons import ExitReason
from opsctl.diagnosis.scan_logs import LogEvent
from opsctl.diagnosis.speakers import NOBODY, Speaker


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why an attempt ended, with what proves it. Empty is what nobody can tell."""

    kind: CauseKind
    cause: str
    """The row of causes.toml, or `traceback`, `end` for somebody's word, `nothing`."""
    says: str
    scope: Scope = Scope.JOB
    node: str = ""
    rank: int | None = None
    gpu: str = ""
    at: str = ""
    evidence: tuple[str, ...] = ()
    log: str = ""
    """Where the evidence stands."""
    also: tuple[str, ...] = ()
    """What else is known, such as how many ranks only echo it."""
    advice: str = ""
    attempt: str = ""
    iteration: int | None = None
    """The last one that was reported."""

    @property
    def suspects(self) -> tuple[str, ...]:
        """The nodes that the train should not get again."""
        return (self.node,) if self.node and self.scope in {Scope.GPU, Scope.NODE} else ()


def find_root_cause(
    events: Sequence[LogEvent],
    *,
    end: ExitReason | None = None,
    iteration: int | None = None,
    ranks: int | None = None,
    before: Diagnosis | None = None,
) -> Diagnosis:
    """Why it ended, from what its logs tell, in their order, and what is known without them.

    `ranks` is how many there were; `before` is what ended the attempt before this one.
    """  # fmt: skip
    chosen = _heaviest(events)
    if chosen and chosen.cause is UNEXPLAINED:
        events = [event for event in events if not _is_echo(event)]
        chosen = _heaviest(events)
    if end and (end.is_final or chosen is None or chosen.cause.weight < Weight.CAUSE):
        return _by_word(end, events, iteration, ranks)
    if chosen is None:
        return Diagnosis(
            kind=CauseKind.UNKNOWN, cause="nothing", says="no log tells why", iteration=iteration,
            advice="See the end of the log: opsctl logs.",
        )  # fmt: skip
    cause = _once_running(chosen.cause) if iteration is not None else chosen.cause
    who = _who(chosen, events)
    diagnosis = Diagnosis(
        kind=cause.kind, cause=cause.name, says=cause.says, scope=cause.scope, node=who.node, rank=who.rank,
        gpu=who.gpu, at=when(chosen), evidence=tuple(excerpt(chosen)), log=str(chosen.path),
        also=tuple(_also(chosen, events, ranks)), advice=cause.advice, iteration=iteration,
    )  # fmt: skip
    return _in_the_light_of(before, diagnosis)


def _heaviest(events: Sequence[LogEvent]) -> LogEvent | None:
    """The first of those that explain most."""
    return min(events, key=lambda event: -event.cause.weight, default=None)


def _is_echo(event: LogEvent) -> bool:
    """A traceback whose exception only reports a lost connection; another line of that rank says so already."""
    if event.cause is not UNEXPLAINED:
        return False
    cause = classify(excerpt(event)[-1])
    return cause is not None and cause.weight is Weight.ECHO


def _by_word(end: ExitReason, events: Sequence[LogEvent], iteration: int | None, ranks: int | None) -> Diagnosis:
    """What somebody says; and of the logs, what explains nothing but may help."""
    lost = Scope.NODE if end.kind is CauseKind.NODE else Scope.JOB
    lines = [] if end.is_final else [*_silent(events, ranks), *_counts(events)]
    return Diagnosis(
        kind=end.kind, cause="end", says=end.says, scope=lost, also=tuple(lines), advice=end.advice,
        iteration=iteration,
    )  # fmt: skip


def _once_running(cause: Cause) -> Cause:
    return next((each for each in causes() if each.name == cause.later), cause)


def _who(chosen: LogEvent, events: Sequence[LogEvent]) -> Speaker:
    """Who has it: whoever says it, else whoever says the same, else the first rank that Slurm says is gone."""
    if chosen.cause.weight is Weight.ECHO:
        return _named_by_most(events)
    same = (event for event in events if event.cause is chosen.cause)
    gone = (event for event in events if event.cause.weight is Weight.DEATH)
    named = (event.speaker for event in (chosen, *same, *gone) if event.speaker.is_known)
    who = next(named, NOBODY)
    if who.rank is not None and not who.node:
        who = replace(who, node=next((e.speaker.node for e in events if e.speaker.rank == who.rank), ""))
    return who


def _named_by_most(events: Sequence[LogEvent]) -> Speaker:
    """Where there are only echoes: the peer whom most ranks name, if they agree."""
    peers = Counter(event.peer for event in events if event.peer).most_common(2)
    if not peers or (len(peers) > 1 and peers[0][1] == peers[1][1]):
        return NOBODY
    return Speaker(node=peers[0][0])


def _also(chosen: LogEvent, events: Sequence[LogEvent], ranks: int | None) -> Iterable[str]:
    same = {event.speaker for event in events if event.cause is chosen.cause} - {chosen.speaker, NOBODY}
    if same:
        yield f"{_ranks(len(same))} say{'s' * (len(same) == 1)} the same"
    if chosen.cause.weight is Weight.ECHO:
        yield from _silent(events, ranks)
    yield from _counts([event for event in events if event.cause is not chosen.cause])


def _counts(events: Sequence[LogEvent]) -> Iterable[str]:
    """How many ranks tell of what is no cause."""
    counts: dict[str, set[Speaker]] = {}
    for event in events:
        if event.cause.weight is Weight.ECHO:
            counts.setdefault(event.cause.says, set()).add(event.speaker)
    for says, speakers in counts.items():
        yield f"{says} ({_ranks(len(speakers))})"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _silent(events: Sequence[LogEvent], ranks: int | None) -> Iterable[str]:
    """The ranks that tell nothing while most others complain: they are what the others wait for."""
    heard = {event.speaker.rank for event in events if event.speaker.rank is not None}
    if not ranks or not ranks // 2 < len(heard) < ranks:
        return
    quiet = sorted(set(range(ranks)) - heard)
    shown = ", ".join(map(str, quiet[:8])) + (", ..." if len(quiet) > 8 else "")
    yield f"all but {_ranks(len(quiet))} complain; silent: {shown}"


def _in_the_light_of(before: Diagnosis | None, diagnosis: Diagnosis) -> Diagnosis:
    """A GPU that failed in the attempt before, and fails again on the same node in another way, is still broken."""
    if before is None or before.kind is not CauseKind.GPU or before.node != diagnosis.node or not diagnosis.node:
        return diagnosis
    note = f"the same node ended {before.attempt or 'the attempt before'}: {before.says}"
    kind, scope = (
        (CauseKind.GPU, Scope.GPU)
        if diagnosis.kind in {CauseKind.MEMORY, CauseKind.UNKNOWN}
        else (diagnosis.kind, diagnosis.scope)
    )
    return replace(diagnosis, kind=kind, scope=scope, also=(note, *diagnosis.also))
