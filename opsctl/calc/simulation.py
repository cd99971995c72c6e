"""A months-long train in virtual time, from failure to failure. Times in hours.

A task waits in the queue, starts up, then works and saves in turns until its time limit or a failure. Unsaved work is
done again. Some failures hang until they are noticed. Some failures leave the node broken: until the node is taken
out, every attempt on this node dies at its start. Flaky nodes are nodes that fail more often than others. A node that
was taken out returns healthy, and a spare replaces the node until then.

With the guard, a failure that leaves the node in order is followed by a restart in place. A node that is taken out
needs a spare node of the task, and must not be the first node, on which the guard runs; otherwise the next task waits.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from opsctl.calc.argument_checks import negative, not_positive, not_share, refuse

CAUSES = ("queue", "start-up", "checkpoints", "done twice", "hang until noticed", "held")
"""The causes of lost time."""
MAX_DAYS = 3650
"""Ten years. No train is longer, and a typing error must not simulate for hours."""
MIN_MTBF_H = 1 / 60
"""With more failures, a simulation would never end."""


NOT_NEGATIVE: tuple[str, ...] = ("save_h", "queue_h", "start_up_h", "notice_h", "flaky_nodes", "spares", "spare_nodes")
NOT_NEGATIVE += ("repair_days", "person_h", "flaky_factor")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSetup:
    """The train and its cluster."""

    nodes: int
    days: float = 90.0
    per_1000_node_days: float = 6.5
    """Failures of a node that is not flaky."""
    interval_h: float = 3.0
    save_h: float = 40 / 3600
    start_up_h: float = 0.1
    queue_h: float = 0.0
    """Mean wait of a task. Waits are distributed exponentially."""
    task_h: float = math.inf
    """Time limit of one array task."""
    hangs: float = 0.1
    """Share of failures that hang instead of ending the attempt."""
    notice_h: float = 0.5
    """Length of a hang: the timeout of NCCL or of a watchdog."""
    broken: float = 0.1
    """Share of failures that leave the node broken."""
    flaky_nodes: int = 0
    flaky_factor: float = 30.0
    """Failure rate of a flaky node over that of other nodes."""
    spares: int = 4
    spare_nodes: int = 0
    """Nodes of a task that wait to replace another."""
    repair_days: float = 3.0
    tasks: int = 10
    """Queued array tasks, which a broken node can burn."""
    person_h: float = 8.0
    """Time until a person takes out a broken node on which every attempt dies at its start."""
    guard: bool = True
    """The chain guard takes out broken and flaky nodes at once. Without it, the next attempt gets them again."""

    def __post_init__(self) -> None:
        refuse(
            "simulation",
            [
                *not_positive(nodes=self.nodes, days=self.days, interval_h=self.interval_h, tasks=self.tasks),
                *negative(failures_per_1000_node_days=self.per_1000_node_days),
                *negative(**{name: getattr(self, name) for name in NOT_NEGATIVE}),
                *not_share(hangs=self.hangs, broken=self.broken),
                *_contradictions(self),
            ],
        )

    @property
    def mtbf_h(self) -> float:
        """Mean time between failures of a running train, flaky nodes included; inf without failures."""
        rate = _rate(self, self.flaky_nodes)
        return 1 / rate if rate else math.inf


def _contradictions(setup: SimulationSetup) -> Iterator[str]:
    if MAX_DAYS < setup.days < math.inf:
        yield f"days is {setup.days:g}, at most {MAX_DAYS} are simulated"
    if setup.flaky_nodes > setup.nodes:
        yield f"{setup.flaky_nodes} flaky nodes among {setup.nodes} nodes"
    if not setup.task_h > setup.start_up_h + setup.save_h:
        yield f"a task of {setup.task_h:g} h ends before a start-up and a save do"
    if setup.mtbf_h < MIN_MTBF_H:
        yield f"a failure every {setup.mtbf_h * 3600:.2g} s: no train gets anywhere"


def _rate(setup: SimulationSetup, flaky_nodes: int) -> float:
    """Return the failures per hour of all nodes in use."""
    weight = setup.nodes - flaky_nodes + flaky_nodes * setup.flaky_factor
    return weight * setup.per_1000_node_days / 1000 / 24


@dataclass(slots=True)
class SimulatedRun:
    """One run, moved forward attempt by attempt. In the end, `effective_h` and the hours of `lost` are `wall_h`."""

    setup: SimulationSetup
    seed: int = field(compare=False)
    now: float = 0.0
    effective_h: float = 0.0
    failures: int = 0
    attempts: int = 0
    removed: int = 0
    """Number of nodes taken out."""
    flaky_nodes: int = 0
    lost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    out: list[float] = field(default_factory=list)
    """When every removed node returns, as a heap."""
    task_left_h: float = 0.0
    """Time left of the running task; 0 if the next attempt needs a new task."""
    spares_left: int = 0
    """Unused spare nodes of the running task."""
    failing: Random = field(init=False, compare=False)
    kinds: Random = field(init=False, compare=False)
    waits: Random = field(init=False, compare=False)
    places: Random = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # One random stream per purpose, so that a change of one figure does not change the other draws.
        streams = [Random(f"{self.seed} {purpose}") for purpose in ("failing", "kinds", "waits", "places")]  # noqa: S311 (no secrets)  # a simulation, no secret  # nosec B311
        self.failing, self.kinds, self.waits, self.places = streams
        self.flaky_nodes = self.setup.flaky_nodes

    @property
    def wall_h(self) -> float:
        return self.setup.days * 24

    @property
    def share(self) -> float:
        return self.effective_h / self.wall_h

    @property
    def share_without_queue(self) -> float:
        """The effective share without the time in the queue, as in some published figures."""
        return self.effective_h / max(self.wall_h - self.lost["queue"], 1e-9)

    def lose(self, cause: str, hours: float) -> None:
        """Spend time on `cause`, at most to the end."""
        hours = max(0.0, min(hours, self.wall_h - self.now))
        self.lost[cause] += hours
        self.now += hours

    def gain(self, hours: float) -> None:
        self.effective_h += hours
        self.now += hours


def simulate(setup: SimulationSetup, *, seed: int) -> SimulatedRun:
    """Simulate one train. The same seed gives the same result."""
    train = SimulatedRun(setup=setup, seed=seed)
    while train.now < train.wall_h:
        if not train.task_left_h:
            _wait(train)
        if train.now < train.wall_h:
            _run_attempt(train)
    return train


def _wait(train: SimulatedRun) -> None:
    """Wait until there are enough nodes, and Slurm has started the attempt."""
    while train.out and (train.out[0] <= train.now or len(train.out) > train.setup.spares):
        train.lose("held", train.out[0] - train.now)
        if train.now < train.out[0]:
            return
        heapq.heappop(train.out)
    if train.setup.queue_h:
        train.lose("queue", train.waits.expovariate(1 / train.setup.queue_h))
    train.task_left_h, train.spares_left = train.setup.task_h, train.setup.spare_nodes


def _run_attempt(train: SimulatedRun) -> None:
    """Run one attempt to a failure, to its time limit, or to the end of the simulation."""
    setup, begin, left = train.setup, train.now, train.wall_h - train.now
    train.attempts += 1
    rate = _rate(setup, train.flaky_nodes)
    fails_after = train.failing.expovariate(rate) if rate else math.inf
    if fails_after < min(train.task_left_h, left):
        train.lose("done twice", _cycles(train, fails_after))
        keeps_task = _fail(train)
        left_h = train.task_left_h - (train.now - begin)
        train.task_left_h = left_h if keeps_task and left_h > setup.start_up_h + setup.save_h else 0.0
    elif train.task_left_h < left:
        _work_until_limit(train, train.task_left_h)
        train.task_left_h = 0.0
    else:
        _work_until_end(train, left)


def _cycles(train: SimulatedRun, hours: float) -> float:
    """Spend the start-up and the whole intervals with their saves; return the hours left."""
    setup = train.setup
    train.lose("start-up", min(hours, setup.start_up_h))
    working = max(0.0, hours - setup.start_up_h)
    count = math.floor(working / (setup.interval_h + setup.save_h))
    train.gain(count * setup.interval_h)
    train.lose("checkpoints", count * setup.save_h)
    return max(0.0, working - count * (setup.interval_h + setup.save_h))


def _work_until_limit(train: SimulatedRun, hours: float) -> None:
    """An attempt saves before its deadline."""
    rest = _cycles(train, hours)
    saving = min(rest, train.setup.save_h)
    train.gain(rest - saving)
    train.lose("checkpoints", saving)


def _work_until_end(train: SimulatedRun, hours: float) -> None:
    """Unsaved work at the end of the simulation is not lost."""
    rest = _cycles(train, hours)
    working = min(rest, train.setup.interval_h)
    train.gain(working)
    train.lose("checkpoints", rest - working)
    train.now = train.wall_h


def _fail(train: SimulatedRun) -> bool:
    """Apply a failure: the hang, burnt tasks, and the removal of the node. Return whether the task keeps its nodes."""
    setup = train.setup
    train.failures += 1
    weight = train.flaky_nodes * setup.flaky_factor
    is_flaky = train.kinds.random() * (setup.nodes - train.flaky_nodes + weight) < weight
    hangs, breaks = train.kinds.random() < setup.hangs, train.kinds.random() < setup.broken
    if hangs:
        train.lose("hang until noticed", setup.notice_h)
    if breaks and not setup.guard:
        _burn(train)
    if not (breaks or (is_flaky and setup.guard)):
        return setup.guard
    train.removed += 1
    train.flaky_nodes -= is_flaky
    heapq.heappush(train.out, train.now + setup.repair_days * 24)
    is_replaced = setup.guard and train.spares_left > 0 and train.places.random() * setup.nodes >= 1
    train.spares_left -= is_replaced
    return is_replaced


def _burn(train: SimulatedRun) -> None:
    """Burn attempts on a broken node until no task is queued or a person removes the node."""
    setup = train.setup
    attempt_h = setup.queue_h + setup.start_up_h
    burnt = math.floor(min(setup.tasks, setup.person_h / attempt_h)) if attempt_h else 0
    train.attempts += burnt
    train.lose("queue", burnt * setup.queue_h)
    train.lose("start-up", burnt * setup.start_up_h)
    train.lose("held", setup.person_h - burnt * attempt_h)
