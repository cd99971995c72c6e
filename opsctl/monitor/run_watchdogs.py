"""Run the watchdogs of a cycle on their targets, and turn failures into findings."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from opsctl.base.findings import Finding, Level
from opsctl.base.ports import Watchdog
from opsctl.base.statements import state
from opsctl.host.isolation import Failed
from opsctl.launch.tracker_runs import add_links
from opsctl.monitor.read_trains import Unit
from opsctl.monitor.rollback_proposal import propose_rollback
from opsctl.monitor.vanished import CheckedParts
from opsctl.settings.loader import SiteSettings
from opsctl.settings.watch import Filesystem
from opsctl.watchdogs import WATCHDOGS
from opsctl.watchdogs.context import WatchContext, WatchedTrain

log = logging.getLogger(__name__)


def list_units(checked: CheckedParts) -> Iterator[tuple[Unit, Callable[[], list[Finding]]]]:
    """Yield what to run; of a partial cycle, only what watches trains."""
    for watchdog in checked.watchdogs.values():
        if checked.slurm_answers or not watchdog.needs_slurm:
            for name, target in _select_targets(watchdog, checked):
                yield (watchdog.name, name), partial(_run_watchdog, watchdog, checked.context, target)


def _select_targets(watchdog: Watchdog[WatchContext, Any, Any], checked: CheckedParts) -> list[tuple[str, Any]]:
    if watchdog.of == "train":
        return [(train.name, train) for train in checked.context.trains if watchdog.name not in train.config.watch.off]
    if checked.is_partial:
        return []
    if watchdog.of == "site":
        return [("site", None)]
    return [(filesystem.name, filesystem) for filesystem in filesystems(checked.context.site)]


def filesystems(site: SiteSettings) -> tuple[Filesystem, ...]:
    """Return the file systems that the site names, or else the file system of the trains."""
    return site.filesystem or (Filesystem(name="root", path=str(site.root_path)),)


def _run_watchdog(watchdog: Watchdog[WatchContext, Any, Any], context: WatchContext, target: object) -> list[Finding]:
    began = context.clock.monotonic()
    findings = list(watchdog.judge(watchdog.probe(context, target), context.now))
    if isinstance(target, WatchedTrain):
        findings = add_links([propose_rollback(finding, target) for finding in findings], target.run, target.events)
    seconds = context.clock.monotonic() - began
    log.debug("watchdog %s: %d findings in %.3f s", watchdog.name, len(findings), seconds)
    for finding in findings:
        log.debug("%s: %s: %s", finding.key, finding.level.value, finding.summary)
    return findings


def collect_findings(results: Mapping[Unit, Any]) -> list[Finding]:
    """Return the findings of all watchdogs; a watchdog that failed gives an unknown one."""
    findings: list[Finding] = []
    for (name, target), result in results.items():
        if not isinstance(result, Failed):
            findings += result
            continue
        findings.append(
            Finding(
                key=f"{name}/{target}",
                level=Level.UNKNOWN,
                train=target if WATCHDOGS[name].of == "train" else "",
                evidence=result.traceback,
                says=state("site.could_not_check", watchdog=name, target=target, why=result.why),
            )
        )
    return findings
