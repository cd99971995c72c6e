"""The attempts of a train, from the journal, their own records and Slurm's accounting, without the log."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from opsctl.guard.attempt_record import read_start
from opsctl.guard.end_record import read_end
from opsctl.report.contents import NamedAttempt, known_cause
from opsctl.slurm.past_jobs import JobRun
from opsctl.state.events import (
    ArrayLost,
    AttemptFinalized,
    AttemptStarted,
    Cancelled,
    Event,
    Held,
    HoldReleased,
    RestartDecided,
    SubmitRefused,
    Submitted,
    Submitting,
)
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.effective_time import Bucket, IdleSpan

MAX_START_DIFFERENCE_S = 3600.0
"""Largest difference between the journal's and Slurm's time of one start. A killed slurmctld may use job ids again, so
a job whose start differs more is another attempt."""


@dataclass(slots=True)
class _Queue:
    """The tasks of the train in Slurm's queue."""

    pending: dict[str, int] = field(default_factory=dict)
    """Number of tasks by the nonce of an unconfirmed submission."""
    arrays: dict[str, int] = field(default_factory=dict)
    """Number of tasks without a start, by array."""
    started: set[str] = field(default_factory=set)
    is_held: bool = False
    restarted: frozenset[str] = frozenset()
    """The attempts after which the trainer was started again in the same allocation."""
    is_restarting: bool = False
    """Whether the newest attempt is one of them."""

    @property
    def bucket(self) -> Bucket:
        if self.is_restarting and not self.is_held:
            return Bucket.RESTART
        if not any(self.arrays.values()) and not self.pending:
            return Bucket.NOT_QUEUED
        return Bucket.HELD if self.is_held else Bucket.QUEUE

    def take(self, event: Event) -> None:
        match event:
            case Submitting():
                self.pending[event.nonce] = max(1, event.tasks)
            case Submitted():
                self.arrays[event.array] = self.pending.pop(event.nonce, self.arrays.get(event.array, 1))
                self.is_held = False
            case SubmitRefused():
                self.pending.pop(event.nonce, None)
            case ArrayLost():
                self.arrays.pop(event.array, None)
            case AttemptStarted():
                self._start(event.attempt)
            case Held() | HoldReleased():
                self.is_held = isinstance(event, Held)
            case Cancelled():
                self._cancel(event)

    def _start(self, attempt: str) -> None:
        self.is_restarting = attempt in self.restarted
        job = attempt.rpartition(".")[0]
        array = job.partition("_")[0]
        if array not in self.arrays and len(self.pending) == 1:
            self.arrays[array] = self.pending.popitem()[1]
        if job not in self.started and self.arrays.get(array):
            self.arrays[array] -= 1
        self.started.add(job)

    def _cancel(self, event: Cancelled) -> None:
        for array in event.jobs:
            left = self.arrays.setdefault(array, 0)
            if event.task is None:
                self.arrays[array] = 0
            elif event.job not in self.started:
                self.arrays[array] = max(0, left - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts(NamedAttempt):
    """What is recorded of one attempt. Times in seconds since the epoch."""

    begin: float
    end: float | None = None
    node_count: int = 0
    last_output: float | None = None
    """When a rank last wrote to its log, as recorded at the end."""
    offset: int | None = None
    """Where in the main log the attempt began, in bytes."""


def collect_attempts(run: RunDir, events: Sequence[Event]) -> list[AttemptFacts]:
    """Return the attempts in the order of the journal. A name may occur twice: a killed slurmctld may reuse job ids."""
    attempts: list[AttemptFacts] = []
    latest: dict[str, int] = {}
    for event in events:
        if isinstance(event, AttemptStarted):
            latest[event.attempt] = len(attempts)
            name, begin = event.attempt, event.when.timestamp()
            attempts.append(AttemptFacts(attempt=name, nodes=event.nodes, spares=event.spares, begin=begin))
        elif isinstance(event, AttemptFinalized):
            number = latest.get(event.attempt)
            if number is not None and not attempts[number].outcome:
                end = max(event.when.timestamp(), attempts[number].begin)
                attempts[number] = replace(attempts[number], end=end, outcome=event.outcome, why=event.why)
    for number in latest.values():
        attempts[number] = _add_records(run, attempts[number])
    return attempts


def _add_records(run: RunDir, attempt: AttemptFacts) -> AttemptFacts:
    """Add the exact times of start.json and end.json."""
    directory = run.attempt(attempt.attempt)
    if start := read_start(directory):
        begin = min(attempt.begin, start.at.timestamp())
        attempt = replace(attempt, begin=begin, node_count=start.node_count, offset=start.main_log)
    if attempt.outcome and (end := read_end(directory)):
        last_output = end.last_output.timestamp() if end.last_output else None
        ended = max(attempt.begin, end.ended.timestamp())
        attempt = replace(attempt, end=ended, last_output=last_output, cause=known_cause(end.cause))
    return attempt


def add_jobs(attempts: Sequence[AttemptFacts], jobs: Sequence[JobRun]) -> list[AttemptFacts]:
    """Add Slurm's accounting: the end of attempts that were not finalized, and attempts without a journal entry.

    An attempt has no journal entry when its node dies at once.
    """
    merged = list(attempts)
    restarts = Counter[str]()
    first = min((attempt.begin for attempt in attempts), default=0.0)
    for job in jobs:
        name = f"{job.job}.{restarts[job.job]}"
        if job.begin is None:
            continue
        restarts[job.job] += 1
        if job.end is None or job.begin < first - MAX_START_DIFFERENCE_S:
            continue
        numbers = [number for number, known in enumerate(merged) if known.attempt == name or _is_start_in(known, job)]
        if not numbers:
            _insert(merged, _from_job(name, job, job.begin))
            continue
        known = merged[max(numbers)]
        is_own = _is_start_in(known, job) or abs(known.begin - job.begin) < MAX_START_DIFFERENCE_S
        if known.end is None and is_own:
            merged[max(numbers)] = replace(
                known, end=job.end, outcome=job.state.value, why=f"Slurm reports {job.state.value}"
            )
    return merged


def _is_start_in(attempt: AttemptFacts, job: JobRun) -> bool:
    """Whether an attempt is a start in this allocation, which may have had several."""
    is_same_task = attempt.attempt.rpartition(".")[0] == job.job
    return is_same_task and (job.begin or 0.0) <= attempt.begin <= (job.end or 0.0)


def _insert(attempts: list[AttemptFacts], attempt: AttemptFacts) -> None:
    """Insert an attempt before the first that began later."""
    later = [number for number, other in enumerate(attempts) if other.begin > attempt.begin]
    attempts.insert(later[0] if later else len(attempts), attempt)


def _from_job(name: str, job: JobRun, begin: float) -> AttemptFacts:
    return AttemptFacts(
        attempt=name,
        nodes=job.nodes,
        begin=begin,
        end=job.end,
        outcome=job.state.value,
        why="only Slurm's accounting has this attempt",
        node_count=job.node_count,
    )


def find_waits(events: Sequence[Event], *, end: float) -> Iterator[IdleSpan]:
    """Yield the reasons for waiting from the first submission to `end`, running attempts not considered."""
    restarted = frozenset(event.attempt for event in events if isinstance(event, RestartDecided))
    queue, begin, bucket = _Queue(restarted=restarted), None, Bucket.NOT_QUEUED
    for event in events:
        queue.take(event)
        # Clocks of hosts differ: events keep the journal's order, and time does not go back.
        at = event.when.timestamp() if begin is None else max(begin, event.when.timestamp())
        if begin is not None and queue.bucket is not bucket:
            yield IdleSpan(begin=begin, end=at, bucket=bucket)
            begin, bucket = at, queue.bucket
        elif begin is None and queue.bucket is not Bucket.NOT_QUEUED:
            begin, bucket = at, queue.bucket
    if begin is not None and end > begin:
        yield IdleSpan(begin=begin, end=end, bucket=bucket)
