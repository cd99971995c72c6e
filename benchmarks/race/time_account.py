"""Where the time went: every second of a race is first-time steps, or lost to one cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

from race.trainer import STEP_S

ENDS = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "PENDING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What rank 0 told: `start`, `step`, `save`, `saved`, `leave`."""

    at: float
    job: str
    what: str
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What Slurm said at one moment."""

    at: float
    states: dict[str, str]
    """By the number that a job itself sees."""
    waits: bool = False
    """Something is queued."""
    held: bool = False
    """Something is queued, and all of it is held."""


@dataclass(slots=True, kw_only=True)
class Account:
    """`effective` and what is `lost` add up to the time between `begin` and `end`."""

    begin: float
    end: float
    faults: Sequence[tuple[float, str]] = ()
    """When what broke."""
    noticed: Sequence[float] = ()
    """When a hung task was cancelled."""
    effective: float = 0.0
    steps: int = 0
    attempts: int = 0
    lost: dict[str, float] = field(default_factory=dict)
    _now: float = field(init=False)

    def __post_init__(self) -> None:
        self._now = self.begin

    @property
    def share(self) -> float:
        return self.effective / (self.end - self.begin)

    def lose(self, cause: str, until: float) -> None:
        """From where the account stands to `until`."""
        until = min(until, self.end)
        if until > self._now:
            self.lost[cause] = self.lost.get(cause, 0.0) + until - self._now
            self._now = until

    def gain(self, until: float, slow: str) -> None:
        """One step that ends at `until`, done for the first time; what it took beyond its time is lost to `slow`."""
        if until > self.end:
            return
        self.steps += 1
        self.lose(slow, until - STEP_S)
        self.effective += until - self._now
        self._now = max(self._now, until)


def account(
    events: Sequence[Event],
    samples: Sequence[Sample],
    *,
    begin: float,
    end: float,
    faults: Sequence[tuple[float, str]] = (),
    noticed: Sequence[float] = (),
) -> Account:
    """Go through a race from `begin` to `end`. Pure."""
    found, best = Account(begin=begin, end=end, faults=faults, noticed=noticed), 0
    began = [attempt for attempt in attempts(events) if attempt[0].at < end]
    for attempt, following in zip_longest(began, (later[0].at for later in began[1:]), fillvalue=end):
        found.attempts += 1
        before_start(found, samples, attempt[0])
        best = live(found, attempt, best)
        after_end(found, samples, attempt, following)
    waiting(found, samples, end)
    return found


def recoveries(events: Sequence[Event], faults: Sequence[tuple[float, str]]) -> list[tuple[str, float, float]]:
    """Return each fault after which the trainer started again: seconds to that start, and to its first step."""
    found = []
    for at, name in faults:
        later = [event for event in events if event.at > at]
        start = next((event for event in later if event.what == "start"), None)
        step = next((event for event in later if event.what == "step" and start and event.at > start.at), None)
        if start and step:
            found.append((name, round(start.at - at, 1), round(step.at - at, 1)))
    return found


def attempts(events: Sequence[Event]) -> Iterator[list[Event]]:
    """A requeued job has more than one."""
    attempt: list[Event] = []
    for event in events:
        if event.what == "start" and attempt:
            yield attempt
            attempt = []
        if not attempt or event.job == attempt[0].job:
            attempt.append(event)
    if attempt:
        yield attempt


def before_start(account: Account, samples: Sequence[Sample], first: Event) -> None:
    runs = [s.at for s in samples if account._now <= s.at <= first.at and s.states.get(first.job) == "RUNNING"]
    waiting(account, samples, runs[0] if runs else first.at)
    account.lose("launching", first.at)


def waiting(account: Account, samples: Sequence[Sample], until: float) -> None:
    """Nothing runs: in the queue, held, or with nothing left to run."""
    inside = [sample for sample in samples if account._now < sample.at < until]
    for sample in inside:
        account.lose("held" if sample.held else "queue" if sample.waits else "nothing queued", sample.at)
    account.lose("queue" if not inside or inside[-1].waits else "nothing queued", until)


def live(account: Account, attempt: Sequence[Event], best: int) -> int:
    """From the trainer's start to the last that was heard of it; the best step then. A rank that stood still may do
    one more step when Slurm, to end it, wakes it up."""
    has_steps = any(event.what == "step" for event in attempt)
    hangs = [at for at, name in account.faults if name == "hang"]
    for before, event in pairwise(attempt):
        if event.what == "saved":
            account.lose("checkpoints", event.at)
        elif event.what == "step":
            if before.what == "start":
                account.lose("start-up", event.at - STEP_S)
            if event.step > best:
                woke = any(before.at - 1 < at < event.at for at in hangs) and event.at - before.at > 2
                account.gain(event.at, "hang until noticed" if woke else "slow steps")
            else:
                account.lose("done twice", event.at)
            best = max(best, event.step)
    if not has_steps:
        account.lose("burnt attempts", attempt[-1].at)
    return best


def after_end(account: Account, samples: Sequence[Sample], attempt: Sequence[Event], following: float) -> None:
    """From the last that was heard of a trainer to when Slurm has its nodes back, or to when the following one began:
    a node that is dead is cleaned up long after."""
    last, job = attempt[-1], attempt[0].job
    over = next((s.at for s in samples if last.at <= s.at < following and s.states.get(job) in ENDS), following)
    if not any(event.what == "step" for event in attempt):
        account.lose("burnt attempts", over)
        return
    met = {name for at, name in account.faults if attempt[0].at <= at <= over and at >= last.at - 1}
    if "hang" in met:
        account.lose("hang until noticed", next((at for at in account.noticed if at >= last.at), over))
    elif "node" in met:
        account.lose("dead node until noticed", over)
    account.lose("restarting in the job" if over == following < account.end else "ending", over)
