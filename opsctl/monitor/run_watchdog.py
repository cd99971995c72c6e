"""Run one watchdog on one target."""

from __future__ import annotations

import logging
from typing import Any

from opsctl.base.findings import Finding
from opsctl.base.ports import Watchdog
from opsctl.launch.tracker_runs import add_links
from opsctl.monitor.rollback_proposal import propose_rollback
from opsctl.watchdogs.context import WatchContext, WatchedTrain

log = logging.getLogger(__name__)


def run_watchdog(watchdog: Watchdog[WatchContext, Any, Any], context: WatchContext, target: object) -> list[Finding]:
    """Return what a watchdog finds about its target."""
    began = context.clock.monotonic()
    findings = list(watchdog.judge(watchdog.probe(context, target), context.now))
    if isinstance(target, WatchedTrain):
        findings = add_links([propose_rollback(finding, target) for finding in findings], target.run, target.events)
    seconds = context.clock.monotonic() - began
    log.debug("watchdog %s: %d findings in %.3f s", watchdog.name, len(findings), seconds)
    for finding in findings:
        log.debug("%s: %s: %s", finding.key, finding.level.value, finding.summary)
    return findings
