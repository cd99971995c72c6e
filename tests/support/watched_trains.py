"""A site with trains on a real Slurm, watched with a clock that the test sets forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.app import App
from opsctl.base.findings import Finding, Severity
from opsctl.base.ports import Clock, Runner
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.monitor.cycle_report import CycleReport
from opsctl.monitor.watch_cycle import Watch
from opsctl.settings.loader import SiteSettings, load_site


@dataclass
class ForwardClock:
    """The real clock plus `ahead`, the time that passes in the test; `skew` is by how much the clock is wrong."""

    ahead: timedelta = timedelta()
    skew: timedelta = timedelta()
    real: SystemClock = field(default_factory=SystemClock)

    def now(self) -> datetime:
        return self.real.now() + self.ahead + self.skew

    def monotonic(self) -> float:
        return self.real.monotonic() + self.ahead.total_seconds()

    def sleep(self, seconds: float) -> None:
        self.real.sleep(seconds)


@dataclass
class CountingRunner:
    """A runner that records the names of the programs it runs."""

    env: dict[str, str]
    programs: list[str] = field(default_factory=list)

    def run(self, argv, *, timeout, stdin="", env=None):
        self.programs.append(argv[0])
        return SystemRunner(env=self.env).run(argv, timeout=timeout, stdin=stdin, env=env)


class CountedApp(App):
    """The real App with a runner that counts Slurm commands."""

    counting: CountingRunner

    @property
    def engine_runner(self) -> Runner:
        return self.counting

    def with_clock(self, clock: Clock) -> CountedApp:
        app = CountedApp(site=self.site, site_path=self.site_path, clock=clock, runner=self.runner)
        object.__setattr__(app, "counting", self.counting)
        return app


def app_of(root: Path, env: dict[str, str], clock: Clock, *, watch: str = "", more: str = "") -> CountedApp:
    path = root / "site.toml"
    head = f'root = "{root}"\ntrust_parents = true\n'
    path.write_text(f"{head}[watch]\nclock_tolerance_seconds = 0\n{watch}\n[alerts]\nwarning_looks = 1\n{more}\n")
    site: SiteSettings = load_site(path)
    app = CountedApp(site=site, site_path=path, clock=clock, runner=SystemRunner())
    object.__setattr__(app, "counting", CountingRunner(env=env))
    return app


def list_transitions(report: CycleReport) -> list[tuple[str, Severity]]:
    """Return the key and the new severity of each transition of a cycle."""
    return [(transition.finding.key, transition.finding.severity) for transition in report.transitions]


def find_finding(report: CycleReport, key: str) -> Finding:
    return next(finding for finding in report.findings if finding.key == key)


def cycle(app: App, *names: str) -> CycleReport:
    return Watch(app=app, names=names).cycle()
