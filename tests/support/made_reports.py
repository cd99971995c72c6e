"""A train with a journal and a log, as a guard and a trainer would have written them."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.guard.action import ACTIONS
from opsctl.guard.end_record import Outcome
from opsctl.report.contents import Report, ReportPeriod
from opsctl.report.train_report import read_train
from opsctl.state.events import AttemptFinalized, AttemptStarted, Event, Submitted, Submitting
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir

BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class SecondsClock:
    """A clock that the test sets, in seconds after BEGIN."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


class Train:
    """A train whose moments are seconds after BEGIN."""

    def __init__(self, place: Path, *, stamps: bool = True) -> None:
        self.run = RunDir(place / "gpt")
        self.run.create()
        self.run.config.write_text("")
        self.clock = SecondsClock()
        self.journal = Journal(self.run, self.clock)
        self.stamps = stamps
        self.attempt = ""
        self.began = 0.0

    def note(self, at: float, event: Event) -> None:
        self.clock.seconds = at
        self.journal.append(event)

    def submit(self, at: float, *, tasks: int = 5, array: str = "7") -> None:
        self.note(at, Submitting(nonce=array, tasks=tasks, after=""))
        self.note(at, Submitted(nonce=array, array=array))

    def start(self, at: float, attempt: str, spares: int = 0) -> None:
        self.note(at, AttemptStarted(attempt=attempt, nodes="node[001-002]", spares=spares))
        self.attempt, self.began = attempt, at
        path = self.run.attempt(attempt).path
        path.mkdir(parents=True)
        size = self.run.main_log.stat().st_size if self.run.main_log.exists() else 0
        record = {
            "attempt": attempt,
            "job": "7",
            "nodes": "node[001-002]",
            "node_count": 2,
            "gpus": "",
            "node": "node001",
            "at": self.clock.now().isoformat(),
            "checkpoint": -1,
            "main_log": size,
        }
        self.run.attempt(attempt).start.write_text(json.dumps(record))

    def write_log(self, text: str) -> None:
        with self.run.main_log.open("a") as log:
            log.write(f"{text}\n")

    def stamp(self, at: float) -> str:
        return f"{(BEGIN + timedelta(seconds=at)).astimezone():%Y-%m-%d %H:%M:%S}.{round(at % 1 * 1000):03}"

    def steps(self, at: float, first: int, last: int, *, seconds: float = 10.0, every: int = 1) -> float:
        """Log these steps, the first of which begins at `at`, and return the end of the last."""
        for step in range(first + every - 1, last + 1, every):
            at += seconds * every
            stamp = f" [{self.stamp(at)}]" if self.stamps else ""
            self.write_log(
                f"[node001:3]: {stamp} iteration {step:8d}/     150 | consumed samples: {step * 16:12d} | "
                f"consumed tokens: {step * 2048:12d} | elapsed time per iteration (s): {seconds:.3f} | "
                f"global batch size:    16 | lm loss: {3 + 5 / step:.6E} | TFLOPs: 140.00 |"
            )
        return at

    def end(self, at: float, outcome: Outcome, why: str = "as told") -> None:
        attempt, action = self.run.attempt(self.attempt), ACTIONS[outcome]
        self.note(at, AttemptFinalized(attempt=self.attempt, outcome=outcome, action=action, why=why))
        began = BEGIN + timedelta(seconds=self.began)
        record = {
            "attempt": self.attempt,
            "outcome": outcome,
            "action": action,
            "why": why,
            "started": began.isoformat(),
            "ended": self.clock.now().isoformat(),
            "new_checkpoint": True,
        }
        attempt.end.write_text(json.dumps(record))

    def report(self, at: float, since: float | None = None, until: float | None = None) -> Report:
        bounds = [None if moment is None else BEGIN + timedelta(seconds=moment) for moment in (since, until)]
        period = ReportPeriod(since=bounds[0], until=bounds[1])
        return read_train(self.run, self.journal.events(), BEGIN + timedelta(seconds=at), period=period).report


def make_rough_train(place: Path, *, stamps: bool = True) -> Train:
    """Return a train with a lost node, a repeated part and slow steps.

    The train waits ten minutes in the queue. A node dies after step 100, which is noticed five minutes later. The next
    attempt resumes from the checkpoint of step 50, has ten slow steps and finishes.
    """
    train = Train(place, stamps=stamps)
    train.submit(0)
    train.start(600, "7_1.0")
    at = train.steps(720, 1, 50)
    train.write_log("saved checkpoint step-0000050 in 41.00 s; training stood still for 40.000 s")
    at = train.steps(at + 40, 51, 100)
    train.end(at + 300, Outcome.NODE_FAILED, "Slurm says NODE_FAIL")
    train.start(at + 360, "7_2.0")
    at = train.steps(at + 480, 51, 120)
    at = train.steps(at, 121, 130, seconds=15.0)
    at = train.steps(at, 131, 150)
    train.write_log("saved checkpoint step-0000150 in 30.00 s; training stood still for 30.000 s")
    train.end(at + 30, Outcome.FINISHED)
    return train
