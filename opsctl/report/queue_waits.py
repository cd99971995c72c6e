"""The reasons for the time between the attempts of a train, from its journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from opsctl.state.journal import Event, EventKind
from opsctl.telemetry.progress.effective_time import Bucket, IdleSpan


def find_waits(events: Sequence[Event], *, end: float) -> list[IdleSpan]:
    """Return the reason for waiting from the first submission to `end`, running attempts not considered."""
    return list(_waits(events, end))


def _waits(events: Iterable[Event], end: float) -> Iterator[IdleSpan]:
    queue, begin, bucket = _Queue(), None, Bucket.NOT_QUEUED
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


@dataclass(slots=True)
class _Queue:
    """The tasks of the train in Slurm's queue."""

    pending: dict[str, int] = field(default_factory=dict)
    """Number of tasks by the nonce of an unconfirmed submission."""
    arrays: dict[str, int] = field(default_factory=dict)
    """Number of tasks without a start, by array."""
    started: set[str] = field(default_factory=set)
    is_held: bool = False

    @property
    def bucket(self) -> Bucket:
        if not any(self.arrays.values()) and not self.pending:
            return Bucket.NOT_QUEUED
        return Bucket.HELD if self.is_held else Bucket.QUEUE

    def take(self, event: Event) -> None:
        data = event.data
        match event.kind:
            case EventKind.SUBMITTING:
                self.pending[str(data["nonce"])] = _count(data["tasks"])
            case EventKind.SUBMITTED:
                known = self.arrays.get(str(data["array"]), 1)
                self.arrays[str(data["array"])] = self.pending.pop(str(data["nonce"]), known)
                self.is_held = False
            case EventKind.SUBMIT_REFUSED:
                self.pending.pop(str(data["nonce"]), None)
            case EventKind.ARRAY_LOST:
                self.arrays.pop(str(data["array"]), None)
            case EventKind.ATTEMPT_STARTED:
                self._start(str(data["attempt"]))
            case EventKind.HELD | EventKind.RELEASED:
                self.is_held = event.kind is EventKind.HELD
            case EventKind.CANCELLED:
                self._cancel(str(data["job"]))
            case _:
                pass

    def _start(self, attempt: str) -> None:
        job = attempt.rpartition(".")[0]
        array = job.partition("_")[0]
        if array not in self.arrays and len(self.pending) == 1:
            self.arrays[array] = self.pending.popitem()[1]
        if job not in self.started and self.arrays.get(array):
            self.arrays[array] -= 1
        self.started.add(job)

    def _cancel(self, jobs: str) -> None:
        for job in jobs.split(","):
            array, _, task = job.partition("_")
            left = self.arrays.setdefault(array, 0)
            if not task:
                self.arrays[array] = 0
            elif job not in self.started:
                self.arrays[array] = max(0, left - 1)


def _count(tasks: object) -> int:
    try:
        return max(1, int(str(tasks)))
    except ValueError:
        return 1
