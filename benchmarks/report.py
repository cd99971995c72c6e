"""`opsctl report` of a train of three months with a log of 200 MB: at most 10 s, compared with the truth.

Tasks of 20 h after a wait in the queue, a checkpoint every 3 h, a failure every few days, some hangs and slow nodes.

python -P benchmarks/report.py [DIRECTORY]      make the train in DIRECTORY and remove it
python -P benchmarks/report.py --keep           keep the train and its page
python -P benchmarks/report.py --no-times       the same with a log without times
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opsctl.guard.action import ACTIONS
from opsctl.guard.end_record import Outcome
from opsctl.state.events import AttemptFinalized, AttemptStarted, Event, Submitted, Submitting, to_line
from opsctl.state.run_dir import RunDir

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
DAYS, STEP_S, TASK_S, SAVE_EVERY, SAVE_S = 90, 13.5, 20 * 3600, 800, 40.0
LAST = 530_000
LINE = (
    "[r7i6n{rank}:383]:  [{at:%Y-%m-%d %H:%M:%S}] iteration {step:8d}/{last:8d} | consumed samples: {samples:12d} | "
    "consumed tokens: {tokens:14d} | elapsed time per iteration (s): {seconds:.2f} | learning rate: 6.000E-05 | "
    "global batch size:  2048 | lm loss: {loss:.6E} | grad norm: {norm:.3f} | num zeros: 0.0 | number of skipped "
    "iterations:   0 | number of nan iterations:   0 | samples per second: {speed:.3f} | TFLOPs: {tflops:.2f} |\n"
)
SAVE_LINES = (
    "[r7i6n0:0]: saving checkpoint at iteration {step:8d} to /checkpoints\n"
    "[r7i6n0:0]: [{at:%Y-%m-%d %H:%M:%S},000] [INFO] [logging.py:96:log_dist] [Rank 0] Saving model checkpoint\n"
    "[r7i6n0:0]:   successfully saved checkpoint at iteration {step:8d} to /checkpoints\n"
    "[r7i6n0:0]: time (ms) | save-checkpoint: 40000.00\n"
)
RESUMED = (
    "[r7i6n0:0]:  loading checkpoint from /checkpoints at iteration {step}\n"
    "[r7i6n0:0]: [before the start of training step] datetime: {at:%Y-%m-%d %H:%M:%S}\n"
)


@dataclass
class Made:
    """The run so far, in seconds since BEGIN."""

    run: RunDir
    dice: random.Random = field(default_factory=lambda: random.Random(4))
    now: float = 0.0
    step: int = 0
    saved: int = 0
    highest: int = 0
    size: int = 0
    events: list[Event] = field(default_factory=list)
    stamps: bool = True
    """Whether the log holds times."""
    truth: Counter[str] = field(default_factory=Counter)
    """Seconds by bucket."""

    def spend(self, bucket: str, seconds: float) -> None:
        self.now += seconds
        self.truth[bucket] += seconds

    def note(self, event: Event) -> None:
        at = (BEGIN + timedelta(seconds=self.now)).isoformat()
        self.events.append(replace(event, number=len(self.events) + 1, at=at, actor="me@login:1"))

    def write(self) -> None:
        self.run.create()
        self.run.config.write_text("")
        with self.run.main_log.open("w", buffering=1 << 20) as log:
            task = 0
            while self.now < DAYS * 86400:
                if task % 20 == 0:
                    self.submit(task)
                self.spend("queue", self.dice.expovariate(1 / 4000))
                task += 1
                for text in self.attempt(f"{100 + (task - 1) // 20}_{(task - 1) % 20 + 1}.0"):
                    self.size += log.write(text if self.stamps else STAMP.sub("", text))
        (self.run.journal / "login-0.jsonl").write_bytes(b"".join(map(to_line, self.events)))

    def submit(self, task: int) -> None:
        array = str(100 + task // 20)
        self.note(Submitting(nonce=array, tasks=20, after=""))
        self.note(Submitted(nonce=array, array=array))

    def attempt(self, name: str) -> Iterator[str]:
        begin, outcome = self.now, Outcome.DEADLINE
        self.note(AttemptStarted(attempt=name, nodes="r7i6n[0-47]"))
        attempt = self.run.attempt(name)
        attempt.path.mkdir(parents=True)
        at = (BEGIN + timedelta(seconds=begin)).isoformat()
        start = {
            "attempt": name,
            "job": "1",
            "nodes": "r7i6n[0-47]",
            "node_count": 48,
            "gpus": "",
            "node": "r7i6n0",
            "at": at,
            "checkpoint": -1,
            "main_log": self.size,
        }
        attempt.start.write_text(json.dumps(start))
        self.spend("start-up", self.dice.uniform(300, 600))
        self.step = self.saved
        yield RESUMED.format(step=self.step, at=(BEGIN + timedelta(seconds=self.now)).astimezone())
        dies = begin + self.dice.expovariate(1 / (3 * 86400))
        slow = 1.15 if self.dice.random() < 0.05 else 1.0
        while self.now < begin + TASK_S - 600:
            yield self.iteration(slow)
            if self.step % SAVE_EVERY == 0:
                yield from self.save()
            if self.now > dies:
                outcome = self.dice.choice([Outcome.HUNG, Outcome.NODE_FAILED, Outcome.CRASHED, Outcome.CRASHED])
                self.last_word(name)
                self.spend("hang until noticed", {Outcome.HUNG: 1800.0, Outcome.NODE_FAILED: 420.0}.get(outcome, 60.0))
                break
        else:
            yield from self.save()
        self.finalize(name, outcome, begin)

    def iteration(self, slow: float) -> str:
        seconds = STEP_S * slow * self.dice.gauss(1, 0.008)
        self.step += 1
        beyond = seconds - STEP_S if slow > 1 else 0.0
        self.spend("training" if self.step > self.highest else "done twice", seconds - beyond)
        self.spend("slow steps" if self.step > self.highest else "done twice", beyond)
        self.highest = max(self.highest, self.step)
        spike = 1.6 if 180_000 < self.step < 181_500 else 0.0
        loss = 1.7 + 9 * (self.step / 300 + 1) ** -0.45 + self.dice.gauss(0, 0.02) + spike
        return LINE.format(
            rank=self.step % 48,
            at=(BEGIN + timedelta(seconds=self.now)).astimezone(),
            step=self.step,
            last=LAST,
            samples=self.step * 2048,
            tokens=self.step * 2048 * 2048,
            seconds=seconds,
            loss=loss,
            norm=0.4,
            speed=2048 / seconds,
            tflops=150 * STEP_S / seconds,
        )

    def save(self) -> Iterator[str]:
        self.spend("checkpoints", SAVE_S)
        self.saved = self.step
        yield SAVE_LINES.format(step=self.step, at=(BEGIN + timedelta(seconds=self.now - 1)).astimezone())

    def last_word(self, name: str) -> None:
        path = self.run.attempt_logs(name) / "r7i6n0-0.log"
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (BEGIN.timestamp() + self.now,) * 2)

    def finalize(self, name: str, outcome: Outcome, begin: float) -> None:
        outcome = Outcome.FINISHED if self.now > DAYS * 86400 else outcome
        fields = {"attempt": name, "outcome": outcome, "action": ACTIONS[outcome], "why": "as it was made"}
        self.note(AttemptFinalized(**fields))
        times = {
            key: (BEGIN + timedelta(seconds=at)).isoformat() for key, at in (("started", begin), ("ended", self.now))
        }
        self.run.attempt(name).end.write_text(json.dumps({**fields, **times, "new_checkpoint": True}))


STAMP = re.compile(r"\[?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?\]?")


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    place = Path(words[0] if words else "/tmp") / f"report-benchmark-{time.time_ns()}"  # noqa: S108 (removed again)
    made = Made(RunDir(place / "bloom"), stamps="--no-times" not in sys.argv)
    try:
        made.write()
        print(f"{made.size / 1e6:.0f} MB, {made.highest:,} steps, {len(made.events)} events")
        compare(made, measure("report TRAIN", str(made.run.path), "--json"))
        measure("report --log", "--log", str(made.run.main_log))
        if "--keep" in sys.argv:
            subprocess.run([*OPSCTL, str(made.run.path), "--html", str(place / "report.html")], check=True)
    finally:
        if "--keep" not in sys.argv:
            shutil.rmtree(place)


def compare(made: Made, text: str) -> None:
    """Print the report's buckets and the true buckets, in percent of the wall-clock time."""
    report = json.loads(text)
    for name, seconds in report["buckets"].items():
        true, wall = made.truth[name] / report["wall_s"], report["wall_s"]
        print(f"    {name:20} {seconds / wall:8.3%}   made {true:8.3%}   off {seconds / wall - true:+8.3%}")


OPSCTL = (sys.executable, "-P", "-m", "opsctl", "report")


def measure(name: str, *words: str) -> str:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([*OPSCTL, *words], capture_output=True, text=True, check=True)
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name}: {seconds:.1f} s ({cpu:.1f} s of CPU), {after.ru_maxrss >> 10} MB at most")
    return done.stdout


if __name__ == "__main__":
    main()
