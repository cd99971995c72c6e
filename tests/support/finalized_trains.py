"""A train with attempts, a clock that the test sets, and a queue that keeps the Slurm's contract without Slurm."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pytest

from opsctl.base.errors import Unreachable
from opsctl.base.model import Job, JobState, LaunchPlan, Limits, Node, Partition
from opsctl.guard.attempt_record import Start, write_start
from opsctl.guard.node_care import NodeCare
from opsctl.launch.train_arrays import TrainArrays
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.remote.fanout import Fanout
from opsctl.settings.health import HealthSettings
from opsctl.settings.loader import GuardSettings
from opsctl.state.events import AttemptStarted, Event, Submitted, Submitting
from opsctl.state.journal import Journal, actor
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.trainer.contract import StopReason, TrainerStop, to_json
from tests.support.clocks import FakeClock

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Queue:
    """Rows that the commands change as Slurm would. After `breaks_after` calls the queue stops answering."""

    rows: list[Job] = field(default_factory=list)
    history: list[Job] = field(default_factory=list)
    end: datetime | None = None
    excludes: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    breaks_after: int | None = None
    states: dict[str, str] = field(default_factory=dict)
    """The states of the nodes that are not idle."""
    addresses: dict[str, str] = field(default_factory=dict)
    """The addresses of the nodes that are not 10.0.0.N."""
    delayed: list[str] = field(default_factory=list)
    """The arrays whose queued tasks wait for a running task."""

    def call(self, name: str) -> None:
        if self.breaks_after is not None and len(self.calls) >= self.breaks_after:
            raise Unreachable(f"{name} did not answer within 10 s")
        self.calls.append(name)

    def jobs(self) -> list[Job]:
        self.call("jobs")
        return list(self.rows)

    def past(self, ids: Sequence[str]) -> list[Job]:
        self.call("past")
        return [job for job in self.history if job.array in ids]

    def kinds(self) -> dict[str, str]:
        self.call("kinds")
        return {}

    def nodes(self) -> list[Node]:
        self.call("nodes")
        names = [f"node00{number}" for number in range(1, 5)]
        return [
            Node(
                name=name,
                state=self.states.get(name, "IDLE"),
                address=self.addresses.get(name, f"10.0.0.{name[-1]}"),
            )
            for name in names
        ]

    def features(self) -> frozenset[str]:
        return frozenset()

    def partitions(self) -> list[Partition]:
        return []

    def limits(self) -> Limits:
        return Limits(version="22.05.8", cluster="c", max_array_size=1001, priority="", accounting=False)

    def accounting(self, user: str, cluster: str) -> None:
        return None

    def submit(self, plan: LaunchPlan, *, script: str, output: str) -> NoReturn:
        raise AssertionError("nothing here submits")

    def hold(self, job: str) -> None:
        self.call("hold")
        self._change(job, reason="JobHeldUser")

    def release(self, job: str) -> None:
        self.call("release")
        self._change(job, reason="Priority")

    def cancel(self, job: str, *, queued_only: bool = False) -> None:
        self.call("cancel")
        self.rows = [row for row in self.rows if row.array != job or (queued_only and not row.state.is_waiting)]

    def start_after(self, waiting: Sequence[Job], task: str) -> None:
        self.call("start_after")
        self.delayed += [job.array for job in waiting]

    def signal(self, job: str, name: str) -> None:
        self.call(f"signal {name}")

    def exclude(self, job: str, nodes: str) -> None:
        self.call("exclude")
        self.excludes[job] = nodes

    def excluded(self, job: str) -> str:
        self.call("excluded")
        return self.excludes.get(job, "")

    def end_time(self, job: str) -> datetime | None:
        self.call("end_time")
        return self.end

    def _change(self, array: str, *, reason: str) -> None:
        self.rows = [
            replace(row, reason=reason) if row.array == array and row.state.is_waiting else row for row in self.rows
        ]

    @property
    def waiting(self) -> list[Job]:
        return [row for row in self.rows if row.state.is_waiting]


@dataclass
class QueuedTrain:
    """Train `gpt`, submitted as array 12 of ten tasks under the nonce n1."""

    run: RunDir
    clock: FakeClock
    queue: Queue
    arrays: TrainArrays
    rules: GuardSettings

    def start_attempt(self, attempt: str = "12_1.0", *, checkpoint: int = -1, nodes: str = "node001") -> Attempt:
        """Record the start of an attempt now and return the attempt."""
        start = Start(
            attempt=attempt,
            job="13",
            nodes=nodes,
            node_count=1,
            gpus="",
            node="node001",
            at=self.clock.now(),
            checkpoint=checkpoint,
        )
        write_start(self.run, self.run.attempt(attempt), start)
        self.arrays.journal.append(AttemptStarted(attempt=attempt, nodes=nodes))
        return self.run.attempt(attempt)

    def end_body(self, attempt: Attempt, code: int, *, after: float = 60) -> None:
        """Record that the guard saw the body end, `after` seconds later."""
        self.clock.sleep(after)
        attempt.body_exit.write_text(f"{code}\n")
        os.utime(attempt.body_exit, (self.clock.now().timestamp(),) * 2)

    def stop_trainer(self, attempt: Attempt, reason: TrainerStop, *, step: int = 40, after: float = 60) -> None:
        """Record that the trainer stopped and wrote its stop reason, `after` seconds later."""
        self.clock.sleep(after)
        attempt.stop_reason.write_text(to_json(StopReason(reason=reason, step=step, at=self.clock.now().timestamp())))

    def add_row(self, tasks: tuple[int, ...], state: JobState, **more: object) -> None:
        row = Job(id="13", array="12", tasks=tasks, name="gpt", user=actor(), state=state, comment="opsctl:gpt:n1")
        self.queue.rows.append(replace(row, **more))  # type: ignore[arg-type]  # fields of a Job

    def event_kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.arrays.journal.events()]

    def end(self, attempt: Attempt) -> dict[str, str]:
        return json.loads(attempt.end.read_text())  # type: ignore[no-any-return]  # end.json is an object


def make_train(path: Path) -> QueuedTrain:
    run, clock, queue = RunDir(path / "gpt"), FakeClock(BEGIN), Queue()
    run.path.mkdir()
    run.create()
    run.config.write_text('name = "gpt"\ncommand = ["true"]\n[slurm]\nnodes = 2\ntime_limit = "10"\n')
    journal = Journal(run, clock)
    journal.append(Submitting(nonce="n1", tasks=10, after=""))
    journal.append(Submitted(nonce="n1", array="12"))
    train = QueuedTrain(
        run, clock, queue, TrainArrays(run=run, journal=journal, slurm=queue), GuardSettings(short_attempts=3)
    )
    train.add_row(tuple(range(2, 11)), JobState.PENDING, reason="JobArrayTaskLimit", id="12")
    clock.sleep(1)
    return train


def make_node_care(train: QueuedTrain) -> NodeCare:
    """Return the node care of a site whose nodes cannot be reached."""
    site = SiteDir(train.run.path.parent / ".site")
    return NodeCare(
        site=HealthSettings(exclude_hours=72),
        history=NodeHistory(site=site, clock=train.clock),
        clock=train.clock,
        exclusions=Exclusions(site=site, clock=train.clock),
        reach=lambda jobs, idle: Fanout(shells=()),
    )


class Killed(BaseException):
    """Stands for SIGKILL: no handler catches this exception."""


@contextmanager
def killed_after(writes: int) -> Iterator[None]:
    """Let this process be killed before a further write to a journal or a run directory."""
    left = iter(range(writes))

    def kill_after_writes(original: Callable[..., object]) -> Callable[..., object]:
        def write(*args: object, **kwargs: object) -> object:
            if next(left, None) is None:
                raise Killed
            return original(*args, **kwargs)

        return write

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Journal, "append", kill_after_writes(Journal.append))
        patched.setattr(RunDir, "write", kill_after_writes(RunDir.write))
        with pytest.raises(Killed):
            yield
