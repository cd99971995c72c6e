"""A ledger and an outbox in a temporary directory, under a clock that the test moves."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from opsctl.alerts.dispatch import Alerting
from opsctl.alerts.ledger import AlertLedger
from opsctl.base.findings import Severity
from opsctl.host.system import SystemRunner
from opsctl.settings.alerts import AlertSettings
from opsctl.state.site_dir import SiteDir
from tests.support.findings import make_finding

SEVERITIES = {".": Severity.OK, "?": Severity.UNKNOWN, "w": Severity.WARNING, "C": Severity.CRITICAL}


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


def finding(severity, key="hang/gpt", **more):
    return make_finding(key=key, severity=severity, **{"summary": f"it is {severity.value}", "train": "gpt", **more})


@dataclass
class World:
    """One site, whose findings the test records."""

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

    def record(self, mark, key="hang/gpt", **more):
        """Record a finding of the severity `mark` and return its transitions."""
        return list(map(format_change, self.ledger.record([finding(SEVERITIES[mark], key, **more)])))

    def record_series(self, marks, minutes=10):
        """Record one finding per mark; return the transitions of every record as `before>after`."""
        changes = []
        for mark in marks:
            changes.append(" ".join(self.record(mark)) or "-")
            self.clock.forward(minutes=minutes)
        return changes


def format_change(transition):
    marks = {severity: mark for mark, severity in SEVERITIES.items()}
    return f"{marks[transition.before]}>{marks[transition.finding.severity]}"


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def with_rules(world):
    def change(**rules):
        world.rules = AlertSettings.model_validate(rules)
        return world

    return change
