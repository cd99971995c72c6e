"""The soak itself: cycles, what breaks in each, and what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median

from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec
from tests.endurance.soak import faults as troubles
from tests.endurance.soak.fault_plan import SLOW, SLURM, Undo, Weather, can_mount
from tests.endurance.soak.faults import Open, Trouble
from tests.endurance.soak.servers import ROW, Mail, Slack
from tests.endurance.soak.soak_cluster import LONG, NODES, SHORT, WAITING, Field, until

ROOT = Path(__file__).parents[3]
TEN_MINUTES = timedelta(minutes=10)
OUTAGE = 8
"""Cycles: long enough that people are told that Slurm does not answer."""
SITE = """root = "{root}"
trust_parents = true
[watch]
timeout_seconds = 30
held_hours = 3
blocked_minutes = 1e6  # what Slurm says of when a job ended is of a clock that the watchers' is ahead of
[[filesystem]]
name = "scratch"
path = "{disk}"
warning_hours = 0
critical_hours = 0
[alerts]
fallback = "paper"
[alerts.channels.mail]
kind = "email"
to = ["me@example.org"]
sender = "opsctl@example.org"
server = "127.0.0.1"
port = {port}
[alerts.channels.team]
kind = "slack"
token_file = "{token}"
channel = "C1"
api_url = "{slack}"
[alerts.channels.paper]
kind = "file"
path = "{paper}"
[[alerts.routes]]
channels = ["mail", "team"]
"""


class Watcher:
    """A process that watches. It is asked for a cycle, and answers when that is over."""

    def __init__(self, field: Field, programs: Path) -> None:
        env = {
            **os.environ,
            **field.sandbox.env(),
            "XDG_STATE_HOME": str(field.place / "state"),
            "PYTHONPATH": str(ROOT),
        }
        argv = [sys.executable, "-m", "tests.endurance.soak.watcher", str(field.site), str(programs)]
        self.process = subprocess.Popen(
            argv, env=env, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, ahead: timedelta) -> None:
        self.process.stdin.write(f"{ahead.total_seconds()}\n")
        self.process.stdin.flush()

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"died": f"exit {self.process.wait()}"}

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Figures:
    cycles: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)
    expected: Counter[tuple[str, str]] = field(default_factory=Counter)
    died: list[str] = field(default_factory=list)
    bugs: list[str] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)
    programs: list[Counter[str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    """What began and ended, and when: for whoever wants to know why."""


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
    """By fault: when it is over, and how."""
    rests: dict[str, int] = field(default_factory=dict)
    """Until which cycle a key is left alone."""
    calm_looks: int = 0
    """So many Slurm has answered."""
    fresh: dict[str, int] = field(default_factory=dict)
    """After how many of those it is known again what is normal for a train."""
    calm_until: int = 0
    """The same for all trains."""
    outage: int = -1
    """The cycle at which a long outage of Slurm ends."""
    was_blind: bool = False
    """In the last cycle: one outage after the other would be a long one."""

    def go(self) -> None:
        try:
            self._go()
        except Exception:
            print(*self.figures.story[-200:], sep="\n")  # noqa: T201 (what it came from)
            raise

    def _go(self) -> None:
        for number in range(self.cycles):
            self._weather(number)
            self._troubles(number)
            self._cycle(number)
        self._clear(self.cycles)
        for number in range(self.cycles, self.cycles + 40):
            self._cycle(number, is_calm=True)
            if number > self.cycles + 3 and not self._waits():
                break

    def _waits(self) -> list[Path]:
        places = (self.weather.site_dir, self.field.place / "state")
        return [path for place in places for path in place.rglob("outbox/*/*.json")]

    def _clear(self, number: int) -> None:
        for name in [*self.undo]:
            self._over(name, number)
        for open in self.open:
            while not open.was_seen:
                self._cycle(number, is_calm=True)
                number += 1
            self._end(open, number)
        self.open.clear()

    # --- what breaks

    def _weather(self, number: int) -> None:
        for name in [name for name, (end, _) in self.undo.items() if end <= number]:
            self._over(name, number)
        while self.dice.random() < 0.45:
            self._begin_fault(number)

    def _begin_fault(self, number: int) -> None:
        given = self.weather.faults()
        is_late = time.monotonic() > self.until - (self.cycles - number) * 1.0
        left = {
            name: weight for name, (_, weight) in given.items()
            if name not in self.undo and not (name in SLURM | {"controller restarted"} and self.undo.keys() & SLURM)
            and not (name in SLOW and is_late) and not (name in SLURM and self.was_blind)
            and not (name == "memory lost" and self.open)
        }  # fmt: skip
        if not left:
            return
        name = self.dice.choices([*left], [*left.values()])[0]
        lasts = 1 if name in SLOW else self.dice.randint(1, 3)
        fits = number + OUTAGE < self.cycles and self.rests.get("slurm/site", 0) <= number
        if name == "slurm refuses" and self.dice.random() < 0.15 and fits:
            lasts = OUTAGE
            self._expect("slurm/site", "UNKNOWN")
            self.figures.troubles["outage"] += 1
            self.rests["slurm/site"] = number + OUTAGE + 2 * troubles.RESTS
        if name == "memory lost":
            self.calm_until = self.calm_looks + 3  # what is normal has to be learnt again
        undo = given[name][0]()
        detail = {"mail": self.weather.mail.mood, "slack": self.weather.slack.mood}.get(name, "")
        self.figures.faults[f"{name} {detail}".strip()] += 1
        self.undo[name] = (number + lasts, undo)
        self._tell(number, f"fault {name} {detail} for {lasts}")
        if lasts == OUTAGE:
            self.outage = number + lasts

    def _over(self, name: str, number: int) -> None:
        end, undo = self.undo.pop(name)
        undo()
        if name == "slurm refuses" and self.outage == end:
            self._expect("slurm/site", "RESOLVED")
            self.outage = -1

    def _troubles(self, number: int) -> None:
        for open in [open for open in self.open if open.was_seen and self._may_touch(open.trouble)]:
            self._end(open, number)
            self.open.remove(open)
        if len(self.open) < 5 and self.calm_looks >= self.calm_until and self.dice.random() < 0.5:
            self._begin_trouble(number)

    def _begin_trouble(self, number: int) -> None:
        trouble = self._draw()
        is_taken = any(open.trouble.train == trouble.train for open in self.open)
        is_fresh = self.fresh.get(trouble.train, 0) > self.calm_looks
        if is_taken or is_fresh or self.rests.get(trouble.key, 0) > number or not self._may_touch(trouble):
            return
        if trouble.key.startswith("node_health") and trouble.key.endswith("/none"):
            return
        trouble.begin()
        self._tell(number, f"begins {trouble.key}")
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

    def _end(self, each: Open, number: int) -> None:
        each.trouble.end()
        self._tell(number, f"ends {each.trouble.key}")
        self._expect(each.trouble.key, "RESOLVED")
        self.rests[each.trouble.key] = number + troubles.RESTS
        self.fresh[each.trouble.train] = self.calm_looks + 3

    def _tell(self, number: int, what: str) -> None:
        self.figures.story.append(f"{number} {what}")

    def _expect(self, key: str, word: str) -> None:
        self.figures.expected[key, word] += 1

    # --- who watches

    def _cycle(self, number: int, *, is_calm: bool = False) -> None:
        self.field.ahead += TEN_MINUTES
        self.field.say()
        skew = timedelta(seconds=0 if is_calm else self.dice.choice((-45, 0, 45)))
        self.watcher.ask(self.field.ahead + skew)
        if not is_calm and self.dice.random() < 0.25:
            self._second(self.field.ahead - skew)
        self._count(self.watcher.answer())
        for open in self.open:
            open.look(self.figures.cycles, slurm_answers=not self.weather.blind)
        self.was_blind = self.weather.blind
        self.calm_looks += not self.was_blind

    def _second(self, ahead: timedelta) -> None:
        """Somebody else's cycle at the same time, by a clock that is 90 s off; now and then it is killed amid it."""
        boxes = (self.weather.mail, self.weather.slack)
        for box in boxes:
            box.recent.clear()
        self.second.ask(ahead)
        if self.dice.random() < 0.3:
            self.figures.faults["two at once, one killed"] += 1
            time.sleep(self.dice.uniform(0.05, 0.8))
            self.second.kill()
            for box in boxes:
                box.cut_off.update(box.recent)
            self.second = Watcher(self.field, self.weather.programs)
            return
        self.figures.faults["two at once"] += 1
        self._judge(self.second.answer())

    def _judge(self, said: dict) -> None:
        if "died" in said:
            self.figures.died.append(said["died"])
        self.figures.bugs += said.get("bugs", [])
        place = str(self.field.place)
        self.figures.problems.update(each.replace(place, "").partition("~")[0] for each in said.get("problems", []))
        for key, before, level, summary in said.get("told", []):
            self._tell(self.figures.cycles, f"told {key}: {before} -> {level}: {summary}")
            if level == "warning" and summary.endswith("Kill task failed"):
                self._slurms_own(key)

    def _slurms_own(self, key: str) -> None:
        """Slurm itself drained a node, whose processes did not end in time: true, and nothing that we did."""
        trouble = troubles.Trouble(key=key, word="WARNING", train=key.split("/")[1], begin=lambda: None,
                                   end=troubles.resuming(self.field, key.rpartition("/")[2]))  # fmt: skip
        self._expect(key, trouble.word)
        self.figures.troubles["Slurm's own drain"] += 1
        self.open.append(Open(trouble))

    def _count(self, said: dict) -> None:
        self._judge(said)
        figures = self.figures
        figures.cycles += 1
        if "died" not in said:
            figures.memory.append(said["memory"] >> 20)
            figures.programs.append(Counter(said["programs"]))
            figures.seconds.append(said["seconds"])


@contextlib.contextmanager
def soaking(place: Path, places: Places, *, cycles: int, seed: int, seconds: float) -> Iterator[Soak]:
    """Everything that a soak needs, running; and nothing of it left afterwards."""
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
        site.write_text(SITE.format(root=root, disk=disk, port=mail.port, token=place / "token", slack=slack.url,
                                    paper=place / "paper.txt"))  # fmt: skip
        field = Field(place=place, sandbox=sandbox, site=site, dice=dice)
        weather = Weather(field=field, mail=mail, slack=slack, dice=dice, programs=place / "bin",
                          site_dir=root / ".site", mounted=mounted)  # fmt: skip
        for name in (*LONG, *SHORT, *WAITING):
            field.launch(name)
        until(lambda: all(map(field.node_of, LONG)))
        watchers = [Watcher(field, weather.programs) for _ in range(2)]
        began = time.monotonic()
        soak = Soak(field=field, weather=weather, watcher=watchers[0], second=watchers[1], disk=disk, dice=dice,
                    until=began + seconds, cycles=cycles)  # fmt: skip
        stack.callback(lambda: [watcher.kill() for watcher in (soak.watcher, soak.second)])
        stack.callback(lambda: [undo() for _, undo in soak.undo.values()])
        for _ in range(3):
            soak._cycle(-1, is_calm=True)  # the learning of what is normal
        yield soak


def fallback(soak: Soak) -> Counter[tuple[str, str]]:
    """What went to the file instead of where it should have gone."""
    path = soak.field.place / "paper.txt"
    text = path.read_text() if path.exists() else ""
    matches = (ROW.match(line.strip()) for line in text.splitlines())
    return Counter((match[2], match[1]) for match in matches if match)


def story_of(soak: Soak, said: dict) -> list[str]:
    """What began, ended and was told of the keys of which something was lost or made up, and Slurm's faults."""
    wrong = [*said["lost"], *(key for each in said["false"].values() for key in each)]
    words = {key for key, _ in wrong} | SLURM
    return [line for line in soak.figures.story if wrong and any(word in line for word in words)]


def report(soak: Soak) -> dict[str, object]:
    """The figures, by what they are called in docs/explanation/reliability.md."""
    figures, mail, slack = soak.figures, soak.weather.mail, soak.weather.slack
    paper, expected = fallback(soak), figures.expected
    told = {end: Counter((key, word) for word, key in box.told) for end, box in (("mail", mail), ("slack", slack))}
    news = {end: Counter({k: n for k, n in each.items() if not k[1].startswith("STILL")}) for end, each in told.items()}
    counter = Counter(name for program in figures.programs for name in program.elements())
    return {
        "cycles": figures.cycles, "trains": len(LONG + SHORT + WAITING),
        "faults": sum(figures.faults.values()), "faults by kind": dict(figures.faults.most_common()),
        "troubles": dict(figures.troubles), "alerts expected": expected.total(),
        "sent": {end: each.total() for end, each in news.items()},
        "reminders": {end: told[end].total() - news[end].total() for end in told},
        "sent by the fallback": paper.total(),
        "lost": dict(expected - (news["mail"] | news["slack"] | paper)),
        "lost on a channel": {end: dict(expected - each - paper) for end, each in news.items()},
        "false": {end: dict(each - expected) for end, each in news.items()},
        "doubled": {"mail": mail.doubled, "slack": slack.doubled},
        "doubled though answered": {"mail": dict(mail.doubled_unasked), "slack": dict(slack.doubled_unasked)},
        "cycles that died": figures.died, "bugs": figures.bugs, "problems": dict(figures.problems.most_common(12)),
        "memory after each quarter, MiB": [figures.memory[(len(figures.memory) - 1) * n // 4] for n in range(5)],
        "Slurm's programs per cycle": {name: round(n / len(figures.programs), 2) for name, n in counter.items()},
        "most in one cycle": {n: max(program[n] for program in figures.programs) for n in counter},
        "seconds of a cycle, median and worst": (round(median(figures.seconds), 2), round(max(figures.seconds), 1)),
        "left in outboxes": len(soak._waits()),
    }  # fmt: skip
