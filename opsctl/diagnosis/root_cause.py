"""Find the root cause of an attempt's end: the first rank that failed, not the ranks that lost their connection."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from opsctl.diagnosis.blame import Proof, find_rule, may_exclude
from opsctl.diagnosis.causes import (
    OF_PROGRAM,
    UNEXPLAINED,
    Cause,
    CauseKind,
    Confidence,
    Scope,
    Weight,
    find_row,
    is_exception,
)
from opsctl.diagnosis.excerpt import (
    collect_excerpt,
    find_time,
    read_following,
    read_preceding,
)
from opsctl.diagnosis.exit_reasons import ExitReason
from opsctl.diagnosis.line_origin import UNKNOWN_ORIGIN, LineOrigin
from opsctl.diagnosis.scan_logs import LogEvent
from opsctl.diagnosis.weigh_event import (
    MESSAGE,
    MIN_ORDINARY_LINES,
    PATTERNS,
    count_ordinary,
    goes_on,
    is_echo,
    is_only_printed,
    is_survived,
    is_uncaught,
    weigh,
)

NOTHING = "nothing"
"""The cause of an attempt whose log names none."""
MAX_CONTEXT_LINES = 8
"""Lines before an event that may change its cause."""
MAX_QUOTE_CHARS = 200
"""Characters of a log line in the summary."""
ENDS_OF_OTHERS = frozenset({"cancelled", "time-limit", "preempted", "rank-killed"})
"""Slurm's words about the end of jobs and tasks. What failed before made the job wait, or Slurm end its other tasks."""
ENDS_OF_RANKS = frozenset({"rank-exited", "step-cancelled"})
"""Ends before which a killed rank is the first to end, so that its peers lost their connection to it."""
ENDS_BY_SLURM = frozenset({"cancelled", "time-limit", "preempted"})
"""Ends for which Slurm names its own reason: a message, an exception of a thread, or one behind which the program went
on does not outweigh them."""
ENDS_BY_ITSELF = frozenset({"child-failed", "rank-exited", "torchrun-summary"})
"""What launchers report of a rank that failed before Slurm ended the job."""
MAX_HANDLED_LINES = 3
"""Lines behind an exception within which Python says that another one followed while the program handled it."""
DOUBT_LINES = {Weight.ERROR: MIN_ORDINARY_LINES // 2, Weight.CAUSE: MIN_ORDINARY_LINES}
"""Ordinary lines behind a cause after which it is only possible. Programs survive exceptions of Python most often."""
SUMMARY = "torchrun-summary"
"""The row of the catalogue for the title of the summary."""
MAX_SUMMARY_LINES = 8
"""Lines below the title of the summary: time, host, rank, exit code, error file, traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why an attempt ended, with evidence. Unknown fields are empty."""

    kind: CauseKind
    cause: str
    """A row of the catalogue, `traceback`, `hang`, `end` for a reported exit reason, or `nothing`."""
    says: str
    signature: str = ""
    """What tells this fault from others of the same cause: the message of the program, the report of the trainer."""
    scope: Scope = Scope.JOB
    node: str = ""
    rank: int | None = None
    gpu: str = ""
    at: str = ""
    evidence: tuple[str, ...] = ()
    log: str = ""
    """Path of the log with the evidence."""
    place: int | None = None
    """Offset in that log of the line that decides, in bytes."""
    also: tuple[str, ...] = ()
    """Further facts, such as the number of ranks that report only an echo."""
    advice: str = ""
    attempt: str = ""
    iteration: int | None = None
    """The last iteration in the log."""
    sure: Confidence = Confidence.CERTAIN
    """How sure the cause is."""
    link: str = ""
    """Address of documentation about the cause."""

    voices: tuple[str, ...] = ()
    """Nodes whose ranks complain about `node`."""
    also_on: tuple[str, ...] = ()
    """Other nodes whose ranks print the same line."""

    @property
    def accused(self) -> tuple[str, ...]:
        """Return the nodes that the logs name as faulty. Exclusion needs more: see blame.toml."""
        names_node = self.scope in {Scope.GPU, Scope.NODE} and may_exclude(self.kind)
        return (self.node, *self.also_on) if self.node and names_node else ()

    @property
    def suspects(self) -> tuple[str, ...]:
        """Return the nodes that the logs alone make suspect."""
        is_suspect = find_rule(self.kind, self.cause).proof in {Proof.MESSAGE, Proof.SLURM} and not self.also_on
        return self.accused if is_suspect else ()


def find_root_cause(
    events: Sequence[LogEvent],
    *,
    end: ExitReason | None = None,
    iteration: int | None = None,
    ranks: int | None = None,
    before: Diagnosis | None = None,
) -> Diagnosis:
    """Return why an attempt ended, from the events of its logs in order and from the reported exit reason `end`.

    `ranks` is the number of ranks; `before` is the diagnosis of the previous attempt.
    """
    events = _select_last_run(events)
    chosen = _heaviest(events)
    if chosen and chosen.cause is UNEXPLAINED:
        events = [event for event in events if not is_echo(event)]
        chosen = _heaviest(events)
    chosen = _find_later(chosen, events) if chosen else None
    if end and (end.is_final or chosen is None or chosen.cause.weight < end.yields_to):
        return _diagnose_by_report(end, events, iteration, ranks)
    if chosen is None:
        return Diagnosis(
            kind=CauseKind.UNKNOWN,
            cause=NOTHING,
            says="no log names a cause",
            iteration=iteration,
            sure=Confidence.POSSIBLE,
            advice="Read the end of the log: opsctl logs.",
        )
    cause = _refine(chosen, events, is_running=iteration is not None)
    culprit = _find_culprit(chosen, events)
    doubt_lines = DOUBT_LINES.get(chosen.cause.weight, 2 * MIN_ORDINARY_LINES)
    diagnosis = Diagnosis(
        kind=cause.kind,
        cause=cause.name,
        says=f"{cause.says}: {chosen.text.strip()[:MAX_QUOTE_CHARS]}" if cause.quotes else cause.says,
        signature=chosen.text.strip()[:MAX_QUOTE_CHARS] if cause.quotes else "",
        scope=cause.scope,
        node=culprit.node,
        rank=culprit.rank,
        gpu=culprit.gpu,
        at=find_time(chosen),
        evidence=tuple(collect_excerpt(chosen)),
        log=str(chosen.path),
        place=chosen.offset,
        also=tuple(_list_facts(chosen, events, ranks)),
        advice=cause.advice,
        iteration=iteration,
        voices=_find_voices(events, culprit.node),
        also_on=_find_other_nodes(chosen, culprit.node, events),
        sure=Confidence.POSSIBLE if goes_on(chosen, doubt_lines) or not _is_end(chosen, events) else cause.sure,
        link=cause.link,
    )
    return _compare_with_previous(before, diagnosis)


def _select_last_run(events: Sequence[LogEvent]) -> Sequence[LogEvent]:
    """Return the events of the last run in logs of several runs, if one of them may be why that run ended."""
    last = [event for event in events if event.offset >= event.last_start]
    return last if any(weigh(event) >= (Weight.DEATH, 0) for event in last) else events


def _heaviest(events: Sequence[LogEvent]) -> LogEvent | None:
    """Return the first event of the highest rank: of the rank that torchrun names as the first, if there are some.

    A rank that was killed before the others waited for it outweighs their wait. What failed before Slurm ended the
    job outweighs that end.
    """
    ordered = _order_by_rank(events)
    for caught in ("threads", "printed"):
        found = (event for event in ordered if is_uncaught(event, caught) and not is_survived(event))
        if chosen := next(found, None):
            break
    else:
        return None
    earlier = events[: events.index(chosen)]
    if chosen.cause.name == "rank-killed" and ENDS_OF_RANKS.isdisjoint(event.cause.name for event in earlier):
        earlier = [event for event in earlier if event.cause.weight is not Weight.ECHO and not is_echo(event)]
    if chosen.cause.kind is CauseKind.HANG or chosen.cause.name in ENDS_OF_OTHERS:
        has_failed = any(event.cause.name in ENDS_BY_ITSELF for event in earlier)
        return _heaviest([event for event in earlier if _explains_end(event, chosen, has_failed=has_failed)]) or chosen
    if not is_exception(chosen.text):
        return chosen
    # A message before an exception of its class is the same failure, told first.
    same = (event for event in earlier if event.cause.kind is chosen.cause.kind and weigh(event) == MESSAGE)
    return next(same, None) or _follow_chain(chosen, events)


def _follow_chain(chosen: LogEvent, events: Sequence[LogEvent]) -> LogEvent:
    """Return the last of the heaviest exceptions of a chain: a program handled an exception before another one."""
    last = best = chosen
    for event in events:
        if (event.path, event.origin) != (chosen.path, chosen.origin) or event.offset <= chosen.offset:
            continue
        if is_exception(event.text):
            if not any(PATTERNS["handled"].search(line) for line in read_following(last, MAX_HANDLED_LINES)):
                break
            last = event
            best = event if weigh(event) >= weigh(best) else best
    return best


def _find_later(chosen: LogEvent, events: Sequence[LogEvent]) -> LogEvent:
    """Return the failure behind which the program did not go on: a later one, if it went on behind `chosen`."""
    later = [event for event in events if event.path == chosen.path and event.offset > chosen.offset]
    following = _heaviest(later)
    if following is None or following.cause.kind is CauseKind.HANG:
        return chosen
    ordinary = count_ordinary(chosen, following.offset)
    least = (Weight.DEATH, 3) if chosen.cause.kind in OF_PROGRAM else (Weight.ERROR, 0)
    if ordinary >= 2 * MIN_ORDINARY_LINES and not is_only_printed(following):
        least = (Weight.DEATH, 1)
    if weigh(following) < min(weigh(chosen), least) or ordinary < MIN_ORDINARY_LINES:
        return chosen
    return _find_later(following, later)


def _is_end(chosen: LogEvent, events: Sequence[LogEvent]) -> bool:
    """Return whether a program ended by the chosen line, or ended at all: it may only have printed the line."""
    ends = (event.cause.weight is Weight.DEATH or is_exception(event.text) for event in events)
    return not is_only_printed(chosen) or any(ends)


def _explains_end(event: LogEvent, end: LogEvent, *, has_failed: bool) -> bool:
    """Return whether an event may be why ranks waited, or why Slurm or a user ended the job or its other tasks.

    `has_failed`: a rank ended by itself before.
    """
    cause = event.cause
    if end.cause.kind is CauseKind.HANG and (cause.kind is CauseKind.HANG or cause.name == "rank-killed"):
        return cause.name == "rank-killed"
    if cause.name in ENDS_OF_OTHERS or cause.name == "interrupted":
        return False
    if cause.kind is CauseKind.HANG:
        return True
    if has_failed or end.cause.name not in ENDS_BY_SLURM:
        return weigh(event) >= (Weight.DEATH, 0) and not goes_on(event)
    is_end = is_uncaught(event, "threads") and not is_only_printed(event)
    return is_end and weigh(event) >= (Weight.DEATH, 0) and not goes_on(event, MIN_ORDINARY_LINES // 2)


def _order_by_rank(events: Sequence[LogEvent]) -> list[LogEvent]:
    """Return the events, the heaviest first and equally heavy ones in their order."""
    ordered = sorted(events, key=weigh, reverse=True)
    first = _find_first_failure(events) if ordered and weigh(ordered[0]) >= (Weight.ERROR, 0) else None
    if first is None:
        return ordered
    return sorted(ordered, key=lambda event: (weigh(event), event.origin.rank == first.rank), reverse=True)


def _find_first_failure(events: Sequence[LogEvent]) -> LineOrigin | None:
    """Return the host and rank that torchrun observed to fail first; None without a summary.

    The agent of each node writes a summary of its own ranks: several summaries name no first rank.
    """
    titles = [event for event in events if event.cause.name == SUMMARY]
    if len(titles) != 1:
        return None
    matches = filter(None, map(PATTERNS["summary_field"].match, read_following(titles[0], MAX_SUMMARY_LINES)))
    fields = {match["name"]: match["value"] for match in matches}
    rank = fields.get("rank", "")
    return LineOrigin(node=fields.get("host", ""), rank=int(rank)) if rank.isdecimal() and len(rank) < 8 else None


def _diagnose_by_report(
    end: ExitReason, events: Sequence[LogEvent], iteration: int | None, ranks: int | None
) -> Diagnosis:
    """Return the reported exit reason, with the echoes in the logs as further facts."""
    facts = [] if end.is_final else [*_list_silent_ranks(events, ranks), *_count_echoes(events)]
    return Diagnosis(
        kind=end.kind,
        cause="end",
        says=end.says,
        signature=end.signature,
        scope=Scope.NODE if end.kind is CauseKind.NODE else Scope.JOB,
        also=tuple(facts),
        advice=end.advice,
        iteration=iteration,
    )


def _refine(event: LogEvent, events: Sequence[LogEvent], *, is_running: bool) -> Cause:
    """Return the row that replaces an event's cause: once the train has done steps, or because of the lines before."""
    cause = event.cause
    name = cause.later if is_running else ""
    if cause.near and any(cause.near.search(line) for line in read_preceding(event, MAX_CONTEXT_LINES)):
        name = cause.becomes
    if any(earlier.cause.name in cause.after for earlier in events if earlier.offset < event.offset):
        name = cause.becomes
    return find_row(name) or cause


def _find_culprit(chosen: LogEvent, events: Sequence[LogEvent]) -> LineOrigin:
    """Return the failed rank: the rank that reports the cause, or the first rank that Slurm reports as ended."""
    if _reports_other_rank(chosen):
        missing = next((event.missing for event in events if event.missing is not None), None)
        return _find_blamed_peer(events) if missing is None else _add_node(LineOrigin(rank=missing), events)
    if not chosen.origin.is_known and (first := _find_first_failure(events)):
        return first
    same = (event for event in events if event.cause is chosen.cause)
    gone = (event for event in events if event.cause.weight is Weight.DEATH)
    named = (event.origin for event in (chosen, *same, *gone) if event.origin.is_known)
    return _add_node(next(named, UNKNOWN_ORIGIN), events)


def _add_node(culprit: LineOrigin, events: Sequence[LogEvent]) -> LineOrigin:
    """Return the rank with its node, if one of its lines names the node."""
    if culprit.rank is None or culprit.node:
        return culprit
    same_rank = (event.origin.node for event in events if event.origin.rank == culprit.rank and event.origin.node)
    return replace(culprit, node=next(same_rank, ""))


def _reports_other_rank(event: LogEvent) -> bool:
    """Return whether the origin waited for another rank, or lost its connection to another rank."""
    return event.cause.weight is Weight.ECHO or event.cause.kind is CauseKind.HANG


def _find_blamed_peer(events: Sequence[LogEvent]) -> LineOrigin:
    """Return the peer that most echoes name. Return UNKNOWN_ORIGIN for a tie."""
    named = {(event.origin, event.peer) for event in events if event.peer}
    peers = Counter(peer for _, peer in named).most_common(2)
    if not peers or (len(peers) > 1 and peers[0][1] == peers[1][1]):
        return UNKNOWN_ORIGIN
    return LineOrigin(node=peers[0][0])


def _find_voices(events: Sequence[LogEvent], peer: str) -> tuple[str, ...]:
    """Return the nodes that name `peer` in an echo."""
    voices = (event.origin.node for event in events if event.peer and event.peer == peer)
    return tuple(dict.fromkeys(voice for voice in voices if voice and voice != peer))


def _find_other_nodes(chosen: LogEvent, culprit: str, events: Sequence[LogEvent]) -> tuple[str, ...]:
    """Return the nodes, other than that of the culprit, whose ranks report the same about themselves."""
    if _reports_other_rank(chosen):
        return ()
    nodes = dict.fromkeys(event.origin.node for event in events if event.cause is chosen.cause)
    return tuple(node for node in nodes if node not in {"", culprit})


def _list_facts(chosen: LogEvent, events: Sequence[LogEvent], ranks: int | None) -> Iterable[str]:
    same = {event.origin for event in events if event.cause is chosen.cause} - {chosen.origin, UNKNOWN_ORIGIN}
    if same:
        yield f"{_count_ranks(len(same))} report{'s' * (len(same) == 1)} the same"
    if _reports_other_rank(chosen):
        yield from _list_silent_ranks(events, ranks)
    yield from _count_echoes([event for event in events if event.cause is not chosen.cause])


def _count_echoes(events: Sequence[LogEvent]) -> Iterable[str]:
    """Yield each kind of echo with the number of ranks that report it."""
    counts: dict[str, set[LineOrigin]] = {}
    for event in events:
        if event.cause.weight is Weight.ECHO:
            counts.setdefault(event.cause.says, set()).add(event.origin)
    for says, origins in counts.items():
        yield f"{says} ({_count_ranks(len(origins))})"


def _count_ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _list_silent_ranks(events: Sequence[LogEvent], ranks: int | None) -> Iterable[str]:
    """Yield a line on the ranks that report nothing while most ranks complain. The others wait for these."""
    complaining = {event.origin.rank for event in events if event.origin.rank is not None}
    if not ranks or not ranks // 2 < len(complaining) < ranks:
        return
    quiet = sorted(set(range(ranks)) - complaining)
    shown = ", ".join(map(str, quiet[:8])) + (", ..." if len(quiet) > 8 else "")
    yield f"all but {_count_ranks(len(quiet))} complain; silent: {shown}"


def _compare_with_previous(before: Diagnosis | None, diagnosis: Diagnosis) -> Diagnosis:
    """Blame the GPU if the same node's GPU also ended the previous attempt and this cause is memory or unknown."""
    if before is None or before.kind is not CauseKind.GPU or before.node != diagnosis.node or not diagnosis.node:
        return diagnosis
    note = f"the same node ended {before.attempt or 'the previous attempt'}: {before.says}"
    diagnosis = replace(diagnosis, also=(note, *diagnosis.also))
    if diagnosis.kind in {CauseKind.MEMORY, CauseKind.UNKNOWN}:
        return replace(diagnosis, kind=CauseKind.GPU, scope=Scope.GPU)
    return diagnosis
