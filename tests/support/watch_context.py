"""A train in a run directory, queue rows that the test sets, and a clock that the test sets."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from opsctl.base.findings import Finding
from opsctl.base.model import Job, JobState
from opsctl.host.system import SystemRunner
from opsctl.launch.train_arrays import take_snapshot
from opsctl.settings.loader import SiteSettings, TrainSettings, parse
from opsctl.state.events import Submitted, Submitting
from opsctl.state.journal import Journal, actor
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.watchdogs import WATCHDOGS
from opsctl.watchdogs.context import WatchContext, WatchdogMemory, WatchedTrain
from tests.support.clocks import FakeClock

T0 = datetime(2026, 1, 5, 1, 0, tzinfo=UTC)
LINE = "[default7]: iteration {step:8d}/   1000 | elapsed time per iteration (s): {step_s} | lm loss: {loss:.6E} |"


@dataclass
class Bench:
    """The context of one watchdog: a site, a train, its jobs and nodes."""

    root: Path
    clock: FakeClock = field(default_factory=lambda: FakeClock(T0))
    site: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    nodes: tuple[Any, ...] | None = ()
    acts: bool = True

    def __post_init__(self) -> None:
        self.run = RunDir(self.root / "gpt")
        self.run.create()
        self.run.config.touch()
        self.journal = Journal(self.run, self.clock)
        self.journal.append(Submitting(nonce="n", tasks=3, after=""))
        self.journal.append(Submitted(nonce="n", array="7"))

    @property
    def attempt(self) -> Attempt:
        return self.run.attempt("7_1.0")

    def start_task(self, *, since: datetime = T0, **changed: Any) -> None:
        self.jobs = (job(start=since, **changed),)

    def train(self) -> WatchedTrain:
        table = {"nodes": 1, "time_limit": "60", "processes_per_node": 2}
        fields = {"name": "gpt", "command": ["x"], "slurm": table, "watch": self.config, "progress": self.progress}
        snapshot = take_snapshot(self.run, self.journal, self.jobs)
        return WatchedTrain(
            run=self.run,
            config=parse(TrainSettings, fields, "t"),
            snapshot=snapshot,
            events=tuple(self.journal.events()),
        )

    def make_context(self) -> WatchContext:
        site = parse(SiteSettings, {"root": str(self.root), **self.site}, "s")
        return WatchContext(
            site=site,
            now=self.clock.now(),
            clock=self.clock,
            runner=SystemRunner(),
            acts=self.acts,
            memory=WatchdogMemory(self.root / ".site/watch"),
            site_dir=self.root / ".site",
            trains=(self.train(),),
            nodes=self.nodes,
        )

    def judge(self, name: str, thing: Any = None, *, after: timedelta = timedelta()) -> Finding:
        """Return the first finding of a watchdog, `after` a time."""
        return self.judge_all(name, thing, after=after)[0]

    def judge_all(self, name: str, thing: Any = None, *, after: timedelta = timedelta()) -> list[Finding]:
        self.clock.time += after
        watchdog, context = WATCHDOGS[name], self.make_context()
        observation = watchdog.probe(context, thing if watchdog.of != "train" else context.trains[0])
        return watchdog.judge(observation, context.now)

    def write_log(self, *lines: str) -> None:
        with self.run.main_log.open("a") as log:
            log.write("".join(f"{line}\n" for line in lines))

    def steps(self, first: int, last: int, *, step_s: float = 1.0, loss: float = 2.0) -> None:
        self.write_log(*(LINE.format(step=step, step_s=step_s, loss=loss) for step in range(first, last)))


def job(**changed: Any) -> Job:
    """Return a job of the train's array: its first task, running."""
    fields = {
        "id": "7",
        "array": "7",
        "tasks": (1,),
        "name": "gpt",
        "user": actor(),
        "state": JobState.RUNNING,
        "nodes": "n1",
        "node_count": 1,
        "partition": "gpu",
        "comment": "opsctl:gpt:n",
    }
    return Job(**{**fields, **changed})


def waiting(reason: str, **changed: Any) -> Job:
    return job(**{"id": "8", "tasks": (2, 3), "state": JobState.PENDING, "reason": reason, "nodes": "", **changed})
