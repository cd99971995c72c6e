"""Two watchers whose disk is full now and then: each trouble is one alert and one RESOLVED, in this order."""

import errno
import os
import random
import re
import threading
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.alerts import dispatch
from opsctl.base.errors import OpsctlError
from opsctl.settings.alerts import AlertSettings
from opsctl.state import lease, site_dir
from tests.unit.alerts.conftest import SEVERITIES, World, finding

ROUNDS = 16
CALM_ROUNDS = 20
"""More than the cycles that a problem which keeps coming back needs to be resolved."""


@dataclass
class Watchers:
    """Two watchers of one site. At every write of one, the other may run a cycle, or the writer may die."""

    world: World
    dice: random.Random
    fails: float = 0.0
    """Probability that a write to the site's disk fails."""
    truth: str = "."
    troubles: int = 0
    is_inside: bool = False
    story: list[str] = field(default_factory=list)

    def change_truth(self) -> None:
        mark = self.dice.choice(".C")
        self.troubles += (self.truth, mark) == (".", "C")
        self.truth = mark

    def watch(self, name: str, skew_s: int = 0) -> None:
        clock = replace(self.world.clock, at=self.world.clock.at + timedelta(seconds=skew_s))
        watcher = replace(self.world, clock=clock)
        mark = self.truth
        try:
            ledger = watcher.ledger.begin_cycle()
            changes = ledger.record([finding(SEVERITIES[mark])])
            self.story.append(f"{name} saw {mark}: {len(changes)} changes")
            dispatch.send_alerts(watcher.alerting)
        except (OpsctlError, KeyboardInterrupt) as error:
            self.story.append(f"{name} saw {mark}: {type(error).__name__}")

    def write(self, path: Path) -> None:
        """Do what happens at a write to `path`."""
        if threading.current_thread() is threading.main_thread() and not self.is_inside and self.fails:
            chance = self.dice.random()
            if chance < 0.06:
                raise KeyboardInterrupt
            if chance < 0.2:
                self.is_inside = True
                self.world.clock.forward(seconds=1)
                if chance < 0.12:
                    self.change_truth()
                self.watch("second", self.dice.choice((-60, 0, 60)))
                self.is_inside = False
        if path.is_relative_to(self.world.site.path) and self.dice.random() < self.fails:
            self.story.append(f"full: {path.name}")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def go(self) -> None:
        for _ in range(ROUNDS):
            self.fails = self.dice.choice((0.001, 0.3, 0.6, 1.0))
            if self.dice.random() < 0.4:
                self.change_truth()
            for name in self.dice.sample(("first", "second"), self.dice.choice((1, 2))):
                self.watch(name, self.dice.choice((-60, 0, 60)))
            self.world.clock.forward(minutes=self.dice.choice((0, 10)))
        self.fails = 0.0
        for _ in range(CALM_ROUNDS):
            self.world.clock.forward(minutes=10)
            self.watch("first")


@pytest.fixture
def make_watchers(world, monkeypatch):
    def make(seed: int) -> Watchers:
        channel = {"kind": "file", "path": str(world.path / "out.txt")}
        world.rules = AlertSettings.model_validate({"channels": {"file": channel}, "repeat_hours": ()})
        watchers = Watchers(world, random.Random(seed))
        for module, name in ((lease, "create"), (site_dir, "write_atomic")):
            monkeypatch.setattr(module, name, _hook(watchers, getattr(module, name)))
        return watchers

    return make


def _hook(watchers: Watchers, write):
    def hooked(path, *arguments, **options):
        watchers.write(path)
        return write(path, *arguments, **options)

    return hooked


def check(watchers: Watchers) -> None:
    """Run the watchers and compare the messages with the troubles."""
    watchers.go()
    out = watchers.world.path / "out.txt"
    text = out.read_text() if out.exists() else ""
    words = re.findall(r"^20\S+ \S+ \[opsctl\] (CRITICAL|RESOLVED):", text, re.MULTILINE)
    expected = ["CRITICAL", "RESOLVED"] * len(words)
    assert words == expected[: len(words)], watchers.story
    assert len(words) % 2 == (watchers.truth == "C"), watchers.story
    assert words.count("CRITICAL") <= watchers.troubles, watchers.story
    assert dispatch.list_undelivered(watchers.world.alerting) == []


@pytest.mark.parametrize("seed", [3, 16, 20, 42])
def test_each_trouble_is_one_alert_and_one_resolved(make_watchers, seed):
    check(make_watchers(seed))
