"""A ledger and an outbox in a directory of their own, under a clock that is moved by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from opsctl.alerts.dispatch import Alerting
from opsctl.alerts.ledger import AlertLedger
from opsctl.host.system import SystemRunner
from opsctl.model import Finding, Level
from opsctl.settings.alerts import AlertSettings
from opsctl.state.site_dir import SiteDir

LEVELS = {".": Level.OK, "?": Level.UNKNOWN, "w": Level.WARNING, "C": Level.CRITICAL}


@dataclass
class Clock:
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    slept: float = 0.0

    def now(self):
        return self.at

    def monotonic(self):
        return self.slept

    def sleep(self, seconds):
        self.slept += seconds

    def forward(self, **span):
        self.at += timedelta(**span)


def finding(level, key="hang/gpt", **more):
    return Finding(key=key, level=level, **{"summary": f"it is {level.value}", "train": "gpt", **more})


@dataclass
class World:
    """One site; `see` is one look."""

    path: object
    clock: Clock = field(default_factory=Clock)
    rules: AlertSettings = field(default_factory=AlertSettings)

    @property
    def site(self):
        return SiteDir(self.path / "site")

    @property
    def spare(self):
        return SiteDir(self.path / "spare")

    @property
    def alerting(self):
        return Alerting(rules=self.rules, site=self.site, spare=self.spare, clock=self.clock, runner=SystemRunner())

    @property
    def ledger(self) -> AlertLedger:
        return self.alerting.ledger

    def see(self, mark, key="hang/gpt", **more):
        """What a look that found `mark` has people told."""
        return [said(transition) for transition in self.ledger.record([finding(LEVELS[mark], key, **more)])]

    def story(self, marks, minutes=10):
        """What each look of a row has people told, as `before>after`."""
        told = []
        for mark in marks:
            told.append(" ".join(self.see(mark)) or "-")
            self.clock.forward(minutes=minutes)
        return told


def said(transition):
    marks = {level: mark for mark, level in LEVELS.items()}
    return f"{marks[transition.before]}>{marks[transition.finding.level]}"


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def with_rules(world):
    def change(**rules):
        world.rules = AlertSettings.model_validate(rules)
        return world

    return change
