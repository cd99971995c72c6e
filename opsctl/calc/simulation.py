"""A months-long train in virtual time, from failure to failure. Times in hours.

An attempt waits in the queue, starts up, and then works and saves by turns until its time limit or a failure. What
was not
saved is done again. Some failures hang and take time to be noticed. Some leave the node broken: until it is taken out,
every attempt that gets it dies at its start. Lemons are nodes that fail more often than the others. A node that was
taken
out comes back good, and until then a spare takes its place.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from opsctl.calc.argument_checks import negative, not_positive, not_share, refuse

CAUSES = ("queue", "start-up", "checkpoints", "done twice", "hang until noticed", "held")
"""Where the time that was not effective went."""
LONGEST_DAYS = 3650
"""Ten years: no train is longer, and a slip of the keyboard does not reckon for hours."""
SHORTEST_H = 1 / 60
"""Between two failures: what fails more often is refused, for it would never end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSetup:
    """The train and its cluster."""

    nodes: int
    days: float = 90.0
    per_1000_node_days: float = 6.5
    """Failures of a node that is no lemon."""
    interval_h: float = 3.0
    save_h: float = 40 / 3600
    start_up_h: float = 0.1
    queue_h: float = 0.0
    """Mean wait of an attempt; waits are spread exponentially."""
    task_h: float = math.inf
    """Time limit of one array task."""
    hangs: float = 0.1
    """Share of failures that hang instead of ending the attempt."""
    notice_h: float = 0.5
    """How long a hang goes on until it is noticed: the timeout of NCCL, or a watchdog's."""
    broken: float = 0.1
    """Share of failures that leave the node broken."""
    lemons: int = 0
    lemon_factor: float = 30.0
    """How many times as often a lemon fails."""
    spares: int = 4
    repair_days: float = 3.0
    tasks: int = 10
    """Array tasks that are queued, and that a broken node can burn through."""
    person_h: float = 8.0
    """Until a person sees that every attempt dies at its start, and takes the broken node out."""
    guard: bool = True
    """With the chain guard broken nodes and lemons are taken out at once; without, the next attempt gets them again."""

    def __post_init__(self) -> None:
        refuse(
            "simulation",
            [
                *not_positive(nodes=self.nodes, days=self.days, interval_h=self.interval_h, tasks=self.tasks),
                *negative(
                    failures_per_1000_node_days=self.per_1000_node_days, save_h=self.save_h, queue_h=self.queue_h,
                    start_up_h=self.start_up_h, notice_h=self.notice_h, lemons=self.lemons, spares=self.spares,
                    repair_days=self.repair_days, person_h=self.person_h, lemon_factor=self.lemon_factor,
                ),
                *not_share(hangs=self.hangs, broken=self.broken),
                *_contradictions(self),
            ],
        )  # fmt: skip

    @property
    def mtbf_h(self) -> float:
        """Mean time between failures while it runs, lemons included; inf without failures."""
        rate = _rate(self, self.lemons)
        return 1 / rate if rate else math.inf


def _contradictions(setup: SimulationSetup) -> Iterator[str]:
    if LONGEST_DAYS < setup.days < math.inf:
        yield f"days is {setup.days:g}, at most {LONGEST_DAYS} are simulated"
    if setup.lemons > setup.nodes:
        yield f"{setup.lemons} lemons among {setup.nodes} nodes"
    if not setup.task_h > setup.start_up_h + setup.save_h:
        yield f"a task of {setup.task_h:g} h ends before a start-up and a save do"
    if setup.mtbf_h < SHORTEST_H:
        yield f"a failure every {setup.mtbf_h * 3600:.2g} s: no train gets anywhere"


def _rate(setup: SimulationSetup, lemons: int) -> float:
    """Failures an hour of all nodes in use."""
    weight = setup.nodes - lemons + lemons * setup.lemon_factor
    return weight * setup.per_1000_node_days / 1000 / 24


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """What became of one train. `effective_h` and the hours of `lost` add up to `wall_h`."""

    wall_h: float
    effective_h: float
    lost: dict[str, float]
    failures: int
    attempts: int
    removed: int
    """Nodes taken out."""

    @property
    def share(self) -> float:
        return self.effective_h / self.wall_h

    @property
    def share_without_queue(self) -> float:
        """As those published figures count that leave the queue out of the wall-clock."""
        return self.effective_h / max(self.wall_h - self.lost["queue"], 1e-9)


@dataclass(slots=True)
class _Train:
    """The state of one run, moved forward attempt by attempt."""

    setup: SimulationSetup
    seed: int
    now: float = 0.0
    effective: float = 0.0
    failures: int = 0
    attempts: int = 0
    removed: int = 0
    lemons: int = 0
    lost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    out: list[float] = field(default_factory=list)
    """When each node that was taken out will be back: a heap."""
    failing: Random = field(init=False)
    kinds: Random = field(init=False)
    waits: Random = field(init=False)

    def __post_init__(self) -> None:
        # A stream for each purpose, so that changing one figure leaves the other draws as they were.
        streams = [Random(f"{self.seed} {what}") for what in ("failing", "kinds", "waits")]  # noqa: S311 (no secrets)
        self.failing, self.kinds, self.waits = streams
        self.lemons = self.setup.lemons

    @property
    def end(self) -> float:
        return self.setup.days * 24

    def lose(self, cause: str, hours: float) -> None:
        """Spend time on `cause`, at most to the end."""
        hours = max(0.0, min(hours, self.end - self.now))
        self.lost[cause] += hours
        self.now += hours

    def gain(self, hours: float) -> None:
        self.effective += hours
        self.now += hours


def simulate(setup: SimulationSetup, *, seed: int) -> SimulatedRun:
    """One train; the same for the same seed."""
    train = _Train(setup=setup, seed=seed)
    while train.now < train.end:
        _wait(train)
        if train.now < train.end:
            _live(train)
    return SimulatedRun(
        wall_h=train.end, effective_h=train.effective, lost=train.lost, failures=train.failures,
        attempts=train.attempts, removed=train.removed,
    )  # fmt: skip


def _wait(train: _Train) -> None:
    """Until there are nodes enough, and Slurm has started the attempt."""
    while train.out and (train.out[0] <= train.now or len(train.out) > train.setup.spares):
        train.lose("held", train.out[0] - train.now)
        if train.now < train.out[0]:
            return
        heapq.heappop(train.out)
    if train.setup.queue_h:
        train.lose("queue", train.waits.expovariate(1 / train.setup.queue_h))


def _live(train: _Train) -> None:
    """One attempt: to a failure, to its time limit, or to the end of what is simulated."""
    setup, left = train.setup, train.end - train.now
    train.attempts += 1
    rate = _rate(setup, train.lemons)
    fails_after = train.failing.expovariate(rate) if rate else math.inf
    if fails_after < min(setup.task_h, left):
        _work_until_failure(train, fails_after)
        _fail(train)
    elif setup.task_h < left:
        _work_until_limit(train, setup.task_h)
    else:
        _work_until_end(train, left)


def _cycles(train: _Train, hours: float) -> tuple[int, float]:
    """The start-up and the whole intervals of an attempt, with their saves; how many there were, and what time is
    left."""
    setup = train.setup
    train.lose("start-up", min(hours, setup.start_up_h))
    working = max(0.0, hours - setup.start_up_h)
    count = math.floor(working / (setup.interval_h + setup.save_h))
    train.gain(count * setup.interval_h)
    train.lose("checkpoints", count * setup.save_h)
    return count, max(0.0, working - count * (setup.interval_h + setup.save_h))


def _work_until_failure(train: _Train, hours: float) -> None:
    _, rest = _cycles(train, hours)
    train.lose("done twice", rest)


def _work_until_limit(train: _Train, hours: float) -> None:
    """An attempt knows its deadline: it saves before it."""
    _, rest = _cycles(train, hours)
    saving = min(rest, train.setup.save_h)
    train.gain(rest - saving)
    train.lose("checkpoints", saving)


def _work_until_end(train: _Train, hours: float) -> None:
    """What is not saved yet when the simulation ends is not lost."""
    _, rest = _cycles(train, hours)
    working = min(rest, train.setup.interval_h)
    train.gain(working)
    train.lose("checkpoints", rest - working)
    train.now = train.end


def _fail(train: _Train) -> None:
    """What a failure brings beside the work that is lost."""
    setup = train.setup
    train.failures += 1
    weight = train.lemons * setup.lemon_factor
    is_lemon = train.kinds.random() * (setup.nodes - train.lemons + weight) < weight
    hangs, breaks = train.kinds.random() < setup.hangs, train.kinds.random() < setup.broken
    if hangs:
        train.lose("hang until noticed", setup.notice_h)
    if breaks and not setup.guard:
        _burn(train)
    if breaks or (is_lemon and setup.guard):
        train.removed += 1
        train.lemons -= is_lemon
        heapq.heappush(train.out, train.now + setup.repair_days * 24)


def _burn(train: _Train) -> None:
    """Lives that get the broken node die one after the other, until none is queued or a person comes."""
    setup = train.setup
    value = setup.queue_h + setup.start_up_h
    burnt = math.floor(min(setup.tasks, setup.person_h / value)) if value else 0
    train.attempts += burnt
    train.lose("queue", burnt * setup.queue_h)
    train.lose("start-up", burnt * setup.start_up_h)
    train.lose("held", setup.person_h - burnt * value)
