"""From transitions to people: everything that a watch cycle, a cron tick and `opsctl alerts` need."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.alert_tables import AlertSite
from opsctl.alerts.ledger import Ledger
from opsctl.ports import Clock, Runner
from opsctl.sitedir import SiteDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerting:
    """The alerts of one site."""

    rules: AlertSite
    site: SiteDir
    spare: SiteDir
    """Carries on while `site` cannot be written."""
    clock: Clock
    runner: Runner

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.site, self.clock, self.rules, self.spare)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What became of one message on one channel."""

    channel: str
    subject: str
    error: str = ""
    """Empty if it was delivered. If not, it waits in the outbox and will be tried again."""


def alert(alerting: Alerting) -> list[Attempt]:
    """Tell people what the ledger has recorded, also what others recorded and did not get to tell; try what waits.

    Call it after `alerting.ledger.record(findings)`, in every cycle, whether or not that returned something. Takes
    some seconds for each channel that does not answer. Raises RunDirError if nothing can be written anywhere.
    """
    raise NotImplementedError


def flush(alerting: Alerting) -> list[Attempt]:
    """Try again what waits and is due."""
    raise NotImplementedError


def ping(alerting: Alerting) -> None:
    """Tell the dead-man's switch that a cycle was complete. Call it only then. Raises OpsctlError if it is not told."""
    raise NotImplementedError
