"""Run a soak: watch cycles over many trains while channels, disks, Slurm and trains fail at random."""

import contextlib
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec
from tests.endurance.soak import faults as troubles
from tests.endurance.soak.fault_plan import SLOW, SLURM, Undo, Weather, can_mount
from tests.endurance.soak.faults import Open, Trouble
from tests.endurance.soak.node_clock import NodeClock
from tests.endurance.soak.servers import Mail, Slack
from tests.endurance.soak.soak_cluster import LONG, NODES, SHORT, WAITING, Field, until
from tests.endurance.soak.soak_report import Figures, count_fallback, report
from tests.endurance.soak.soak_site import OUTAGE_CYCLES, SITE, Outage
from tests.endurance.soak.watcher_process import Watcher

TEN_MINUTES = timedelta(minutes=10)
ROLLBACKS = 0.1
"""Share of the cycles in which a train goes on from an earlier step."""
OVERTIME_S = 120
"""A soak on a slow machine starts no further cycle with faults so long after its planned end."""
CLEAR_S = 240
"""Then it waits this long for the last alerts at most."""
PROGRESS_CYCLES = 50
"""A line of progress is printed after so many cycles."""
WRONG_NODES = 0.3
"""Share of the second watchers that run on a node whose clock is off by hours."""


@dataclass
class Soak:
    field: Field
    weather: Weather
    watcher: Watcher
    second: Watcher
    disk: Path
    dice: random.Random
    until: float
    cycles: int
    figures: Figures = field(default_factory=Figures)
    open: list[Open] = field(default_factory=list)
    undo: dict[str, tuple[int, Undo]] = field(default_factory=dict)
    """By fault: the cycle at which the fault ends, and the call that ends it."""
    rests: dict[str, int] = field(default_factory=dict)
    """By key: the cycle until which no trouble of this key begins."""
    answered_cycles: int = 0
    """The number of cycles in which Slurm answered."""
    fresh: dict[str, int] = field(default_factory=dict)
    """By train: the answered cycle from which on the watchdogs know its normal state again."""
    calm_until: int = 0
    """The same for all trains together."""
    outage: Outage = field(default_factory=Outage)
    clock: NodeClock = field(init=False)
    was_blind: bool = False
    """Whether Slurm did not answer in the last cycle: two outages in a row would be a long outage."""

    def __post_init__(self) -> None:
        self.clock = NodeClock(self.dice)

    def go(self) -> None:
        """Run all cycles, then end every fault and wait for the last alerts."""
        try:
            self._run_cycles()
        except BaseException:
            print(*self.figures.story[-200:], sep="\n")  # noqa: T201 (explains the failure)
            raise

    @property
    def is_out_of_time(self) -> bool:
        return time.monotonic() > self.until + OVERTIME_S + CLEAR_S

    def _run_cycles(self) -> None:
        for number in range(self.cycles):
            if time.monotonic() > self.until + OVERTIME_S:  # a slow machine runs fewer cycles
                break
            self._change_faults(number)
            self._change_troubles(number)
            self.cycle(number)
            if number % PROGRESS_CYCLES == 0:
                left_s = self.until - time.monotonic()
                print(f"cycle {number} of {self.cycles}, {left_s:.0f} s left", flush=True)  # noqa: T201 (progress)
        self._clear(self.cycles)
        for number in range(self.cycles, self.cycles + 40):
            if self.is_out_of_time:
                self.figures.is_cut_off = True
                break
            self.cycle(number, is_calm=True)
            if number > self.cycles + 3 and not self.list_undelivered():
                break

    def stop(self) -> None:
        """End all faults and both watchers."""
        try:
            for _, undo in self.undo.values():
                undo()
        finally:
            self.watcher.kill()
            self.second.kill()

    def list_undelivered(self) -> list[Path]:
        """Return the messages in both outboxes."""
        outboxes = (self.weather.site_dir, self.field.place / "state")
        return list(chain.from_iterable(outbox.rglob("outbox/*/*.json") for outbox in outboxes))

    def _clear(self, number: int) -> None:
        for name in [*self.undo]:
            self._end_fault(name, number)
        for open in self.open:
            while not open.may_end and not self.is_out_of_time:
                self.cycle(number, is_calm=True)
                number += 1
            self._end(open, number)
        self.open.clear()

    # --- faults and troubles

    def _change_faults(self, number: int) -> None:
        for name in [name for name, (end, _) in self.undo.items() if end <= number]:
            if name == "slurm refuses" and self.outage.is_awaited(number):
                continue
            self._end_fault(name, number)
        while self.dice.random() < 0.45:
            self._begin_fault(number)

    def _begin_fault(self, number: int) -> None:
        faults = self.weather.faults()
        is_late = time.monotonic() > self.until - (self.cycles - number) * 1.0
        weights = {name: weight for name, (_, weight) in faults.items() if self._may_begin(name, is_late=is_late)}
        if not weights:
            return
        name = self.dice.choices([*weights], [*weights.values()])[0]
        lasts = 1 if name in SLOW else self.dice.randint(1, 3)
        fits = number + 2 * OUTAGE_CYCLES < self.cycles and self.rests.get("slurm/site", 0) <= number
        if name == "slurm refuses" and self.dice.random() < 0.15 and fits:
            lasts = OUTAGE_CYCLES
            self._expect("slurm/site", "UNKNOWN")
            self.figures.troubles["outage"] += 1
            self.rests["slurm/site"] = number + 2 * OUTAGE_CYCLES + 2 * troubles.RESTS
        if name == "memory lost":
            self.calm_until = self.answered_cycles + 3  # the watchdogs must learn again what is normal
        undo = faults[name][0]()
        detail = {"mail": self.weather.mail.mood, "slack": self.weather.slack.mood}.get(name, "")
        self.figures.faults[f"{name} {detail}".strip()] += 1
        self.undo[name] = (number + lasts, undo)
        self._note(number, f"fault {name} {detail} for {lasts}")
        if lasts == OUTAGE_CYCLES:
            self.outage = Outage(end=number + lasts)

    def _may_begin(self, name: str, *, is_late: bool) -> bool:
        """Return whether a fault may begin now: `is_late` forbids faults that take long."""
        if name in self.undo or (name in SLOW and is_late):
            return False
        if name == "memory lost" and self.clock.is_wrong:  # no other memory of the time is left
            return False
        if name in SLURM | {"controller restarted"} and self.undo.keys() & SLURM:
            return False
        return not (name in SLURM and self.was_blind) and not (name == "memory lost" and self.open)

    def _end_fault(self, name: str, number: int) -> None:
        end, undo = self.undo.pop(name)
        undo()
        if name == "slurm refuses" and self.outage.end == end:
            self._expect("slurm/site", "RESOLVED")
            self.outage = Outage()

    def _change_troubles(self, number: int) -> None:
        if self.dice.random() < ROLLBACKS:
            name = self.dice.choice(LONG)
            if not any(open.trouble.train == name for open in self.open):
                self.field.roll_back(name)
                self.figures.faults["rollback"] += 1
                self._note(number, f"rollback of {name} to step {self.field.steps[name]}")
        for open in [open for open in self.open if open.may_end and self._may_touch(open.trouble)]:
            self._end(open, number)
            self.open.remove(open)
        if len(self.open) < 5 and self.answered_cycles >= self.calm_until and self.dice.random() < 0.5:
            self._begin_trouble(number)

    def _begin_trouble(self, number: int) -> None:
        trouble = self._draw()
        is_taken = any(open.trouble.train == trouble.train for open in self.open)
        is_fresh = self.fresh.get(trouble.train, 0) > self.answered_cycles
        if (
            is_taken
            or is_fresh
            or troubles.disturbs_pair(trouble, self.open)
            or self.rests.get(trouble.key, 0) > number
            or not self._may_touch(trouble)
        ):
            return
        if trouble.key.startswith("node_health") and trouble.key.endswith("/none"):
            return
        trouble.begin()
        self._note(number, f"begins {trouble.key}")
        self._expect(trouble.key, trouble.word)
        self.figures.troubles[trouble.key.partition("/")[0]] += 1
        self.open.append(Open(trouble))

    def _draw(self) -> Trouble:
        if self.dice.random() < 0.05 and self.weather.mounted:
            return troubles.full(self.disk)
        kind, names = self.dice.choice(troubles.KINDS)
        name = self.dice.choice(names)
        if kind is troubles.drained and self.weather.controller_down:
            kind = troubles.no_number
        return kind(self.field, name)

    def _may_touch(self, trouble: Trouble) -> bool:
        is_free = trouble.train not in self.field.inside
        return is_free and not (trouble.needs_slurm and self.weather.controller_down)

    def _end(self, open: Open, number: int) -> None:
        open.trouble.end()
        self._note(number, f"ends {open.trouble.key}")
        self._expect(open.trouble.key, "RESOLVED")
        self.rests[open.trouble.key] = number + troubles.RESTS
        self.fresh[open.trouble.train] = self.answered_cycles + 3

    def _note(self, number: int, text: str) -> None:
        self.figures.story.append(f"{number} {text}")

    def _expect(self, key: str, word: str) -> None:
        self.figures.expected[key, word] += 1

    # --- watch cycles

    def cycle(self, number: int, *, is_calm: bool = False) -> None:
        """Run one cycle, and sometimes a second watcher at the same time.

        A calm cycle has a clock without a jump and no second watcher.
        """
        self.field.ahead += TEN_MINUTES
        self.field.write_progress()
        skew = self.clock.set_right() if is_calm else self._move_clock()
        near = timedelta(seconds=0 if is_calm else self.dice.choice((-45, 0, 45)))
        self.watcher.start_cycle(self.field.ahead, skew=skew + near, node="a")
        if not is_calm and self.dice.random() < 0.25:
            self._run_second(-near)
        self._count(self.watcher.read_answer())
        for open in self.open:
            open.update(self.figures.cycles, slurm_answers=not self.weather.blind)
        self.was_blind = self.weather.blind
        self.answered_cycles += not self.was_blind

    def _move_clock(self) -> timedelta:
        """Return by how much the clock of the watchers' node is wrong in this cycle."""
        if event := self.clock.move(is_memory_kept="memory lost" not in self.undo):
            self.figures.faults[f"clock {event}"] += 1
            self._note(self.figures.cycles, f"clock {event}: now wrong by {self.clock.skew}")
        return self.clock.skew

    def _run_second(self, near: timedelta) -> None:
        """Run another user's cycle at the same time, on a node whose clock is some seconds or some hours off.

        Sometimes kill that watcher.
        """
        skew, node = near, "b"
        if self.dice.random() < WRONG_NODES and "memory lost" not in self.undo:
            skew, node = self.dice.choice((-1, 1)) * timedelta(hours=self.dice.uniform(1, 12)), "c"
            self.figures.faults["a node with a wrong clock"] += 1
            self._note(self.figures.cycles, f"a second watcher's clock is wrong by {skew}")
        boxes = (self.weather.mail, self.weather.slack)
        for box in boxes:
            box.recent.clear()
        self.second.start_cycle(self.field.ahead, skew=skew, node=node)
        if self.dice.random() < 0.3:
            self.figures.faults["two at once, one killed"] += 1
            time.sleep(self.dice.uniform(0.05, 0.8))
            self.second.kill()
            self.weather.slack.settle()
            for box in boxes:
                box.cut_off.update(box.recent)
            self.second = Watcher(self.field, self.weather.programs)
            return
        self.figures.faults["two at once"] += 1
        self._judge(self.second.read_answer())

    def _judge(self, answer: dict[str, Any]) -> None:
        """Record the deaths, bugs, problems and transitions of a cycle."""
        if "died" in answer:
            self.figures.died.append(answer["died"])
        self.figures.bugs += answer.get("bugs", [])
        place = str(self.field.place)
        problems = answer.get("problems", [])
        self.figures.problems.update(problem.replace(place, "").partition("~")[0] for problem in problems)
        for transition in answer.get("transitions", []):
            key, severity, summary = transition["key"], transition["after"], transition["summary"]
            self._note(self.figures.cycles, f"alerted {key}: {transition['before']} -> {severity}: {summary}")
            if severity == "warning" and summary.endswith("Kill task failed"):
                self._expect_drain(key)

    def _expect_drain(self, key: str) -> None:
        """Expect the alert of a node that Slurm itself drained because processes did not end in time."""
        trouble = troubles.Trouble(
            key=key,
            word="WARNING",
            train=key.split("/")[1],
            begin=lambda: None,
            end=troubles.resuming(self.field, key.rpartition("/")[2]),
        )
        self._expect(key, trouble.word)
        self.figures.troubles["Slurm's own drain"] += 1
        self.open.append(Open(trouble))

    def _count(self, answer: dict[str, Any]) -> None:
        self._judge(answer)
        severities = answer.get("open", {})
        for open in self.open:
            open.is_recorded |= severities.get(open.trouble.key) == open.trouble.word.lower()
        self.outage.is_recorded |= "slurm/site" in severities
        figures = self.figures
        figures.cycles += 1
        if "died" not in answer:
            figures.memory_mib.append(answer["memory"] >> 20)
            figures.programs.append(Counter(answer["programs"]))
            figures.seconds.append(answer["seconds"])


@contextlib.contextmanager
def soaking(place: Path, places: Places, *, cycles: int, seed: int, seconds: float) -> Iterator[Soak]:
    """Start the sandbox, servers, trains and watchers of a soak; end all of them afterwards."""
    clock, runner, dice = SystemClock(), SystemRunner(), random.Random(seed)
    root, disk = place / "trains", place / "disk"
    spec = SandboxSpec(name=f"soak-{os.getpid()}", nodes=NODES, fast=True)
    with contextlib.ExitStack() as stack:
        sandbox = Sandbox.up(spec, places=places, clock=clock, runner=runner)
        stack.callback(sandbox.down, grace=0.2)
        disk.mkdir()
        mounted = can_mount(root / ".site", "24m") and can_mount(disk, "32m")
        if mounted:
            for path in (root / ".site", disk):
                stack.callback(subprocess.run, ["umount", "--lazy", str(path)], check=True)
        mail, slack = Mail(), Slack()
        stack.callback(mail.close)
        stack.callback(slack.close)
        (place / "token").write_text("xoxb-1")
        site = place / "site.toml"
        files = {"token": place / "token", "paper": place / "paper.txt"}
        site.write_text(SITE.format(root=root, disk=disk, port=mail.port, slack=slack.url, **files))
        field = Field(place=place, sandbox=sandbox, site=site, dice=dice)
        weather = Weather(
            field=field,
            mail=mail,
            slack=slack,
            dice=dice,
            programs=place / "bin",
            site_dir=root / ".site",
            mounted=mounted,
        )
        for name in (*LONG, *SHORT, *WAITING):
            field.launch(name)
        until(lambda: all(map(field.node_of, LONG)))
        watchers = [Watcher(field, weather.programs) for _ in range(2)]
        until_s = time.monotonic() + seconds
        soak = Soak(
            field=field,
            weather=weather,
            watcher=watchers[0],
            second=watchers[1],
            disk=disk,
            dice=dice,
            until=until_s,
            cycles=cycles,
        )
        stack.callback(soak.stop)
        for _ in range(3):
            soak.cycle(-1, is_calm=True)  # the watchdogs learn what is normal
        yield soak


def make_report(soak: Soak) -> dict[str, object]:
    """Return the figures by their names in docs/explanation/reliability.md."""
    return report(
        soak.figures,
        {"mail": soak.weather.mail, "slack": soak.weather.slack},
        fallback=count_fallback(soak.field.place / "paper.txt"),
        trains=len(LONG + SHORT + WAITING),
        undelivered=len(soak.list_undelivered()),
    )
