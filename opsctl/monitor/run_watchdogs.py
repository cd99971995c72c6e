"""Run the watchdogs of a cycle on their targets, and complete what they find.

Findings get a rollback that helps, and failures become findings. So do open alerts that no watchdog reported: a node
that the train left, a removed train.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from opsctl.alerts.ledger_state import LedgerEntry
from opsctl.base.findings import ROLLBACK, Finding, Severity
from opsctl.base.ports import Watchdog
from opsctl.base.statements import state
from opsctl.checkpoints.scan import FoundCheckpoint, list_checkpoints_in
from opsctl.host.isolation import Failed
from opsctl.launch.tracker_runs import add_links
from opsctl.monitor.read_trains import Unit
from opsctl.settings.loader import SiteSettings
from opsctl.settings.watch import Filesystem
from opsctl.telemetry.progress.signs import find_all_directories
from opsctl.watchdogs import WATCHDOGS
from opsctl.watchdogs.context import WatchContext, WatchedTrain
from opsctl.watchdogs.node_health import end_finding, is_node_alert, judge_left_node

log = logging.getLogger(__name__)
MAX_LISTED = 256
"""Checkpoints of a directory that are looked at, the newest."""
_FAILURE = "failures/"
"""Start of the keys of findings about ended attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedParts:
    context: WatchContext
    watchdogs: Mapping[str, Watchdog[WatchContext, Any, Any]]
    is_partial: bool
    """Whether only some trains were checked."""
    slurm_answers: bool


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
        log.debug("%s: %s: %s", finding.key, finding.severity.value, finding.summary)
    return findings


def collect_findings(results: Mapping[Unit, Any]) -> list[Finding]:
    """Return the findings of all watchdogs; a watchdog that failed gives an unknown one."""
    findings: list[Finding] = []
    for (name, target), result in results.items():
        if not isinstance(result, Failed):
            findings += result
            continue
        key, train = f"{name}/{target}", target if WATCHDOGS[name].of == "train" else ""
        says = state("site.could_not_check", watchdog=name, target=target, why=result.why, train=train)
        findings.append(Finding(key=key, severity=Severity.UNKNOWN, train=train, evidence=result.traceback, says=says))
    return findings


def propose_rollback(finding: Finding, train: WatchedTrain) -> Finding:
    """Return the finding with the checkpoint and the command of a rollback, if that would help.

    The checkpoint is older than the first step in trouble, or than the damaged checkpoint that a held train cannot
    load. Finding out costs a listing of the directories.
    """
    if finding.severity not in {Severity.WARNING, Severity.CRITICAL}:
        return finding
    if finding.key.startswith(_FAILURE):
        found = _list_checkpoints(train) if finding.severity is Severity.CRITICAL else []
        before = _find_damaged_step(finding, found)
    else:
        before = finding.since_step if finding.wants_rollback else None
        found = _list_checkpoints(train) if before is not None else []
    if before is None:
        return finding
    usable = [checkpoint for checkpoint in found if checkpoint.step is not None and checkpoint.step < before]
    whole = [checkpoint for checkpoint in usable if not checkpoint.is_partial]
    chosen = next((checkpoint for checkpoint in usable if checkpoint.is_complete), next(iter(whole), None))
    if chosen is None:
        return replace(finding, roll_back=state("rollback.none", step=before))
    doubt = "" if chosen.is_complete else chosen.reason
    proposal = state(ROLLBACK, train=train.name, step=chosen.step, path=str(chosen.path), doubt=doubt)
    return replace(finding, roll_back=proposal)


def _list_checkpoints(train: WatchedTrain) -> list[FoundCheckpoint]:
    """Return the checkpoints of the train, the highest step first."""
    return list_checkpoints_in(find_all_directories(train.run, train.config), MAX_LISTED)


def _find_damaged_step(finding: Finding, found: Sequence[FoundCheckpoint]) -> int | None:
    """Return the step of the damaged checkpoint that the log lines name; None if no checkpoint is to blame.

    If the finding wants a rollback and no file shows the damage, the newest checkpoint is the one that was loaded.
    """
    wants_rollback = finding.wants_rollback
    stepped = [checkpoint for checkpoint in found if checkpoint.step is not None]
    for checkpoint in stepped:
        is_named = checkpoint.path.name in finding.names
        if (is_named or wants_rollback) and checkpoint.is_partial:
            return checkpoint.step
        if wants_rollback and (is_named or not checkpoint.is_complete):
            return checkpoint.step
    return stepped[0].step if stepped and wants_rollback else None


def judge_vanished(
    checked: CheckedParts,
    results: Mapping[tuple[str, str], Any],
    entries: Mapping[str, LedgerEntry],
    findings: Collection[Finding],
) -> list[Finding]:
    """Return findings for the open alerts of `entries` without one: ok if the subject is gone.

    `results` are those of the watchdogs, by watchdog and target. A node that a train has left is over once the node
    itself is healthy again.
    """
    reported = {finding.key for finding in findings}
    judged = []
    for key, entry in entries.items():
        if not entry.is_open or key in reported or not _has_vanished(checked, results, key, reported):
            continue
        says = state("site.vanished", key=key)
        finding = entry.finding or Finding(key=key, severity=Severity.OK, says=says)
        if is_node_alert(key):
            judged += judge_left_node(checked.context, finding)
        else:
            judged.append(end_finding(finding, says))
    return judged


def _has_vanished(
    checked: CheckedParts, results: Mapping[tuple[str, str], Any], key: str, reported: Collection[str]
) -> bool:
    """Return whether an open alert without a finding in this cycle is resolved.

    `key` is `WATCHDOG/TARGET` or `WATCHDOG/TARGET/PART`. The alert is resolved if the watchdog checked the target and
    no longer reports the part, or if the target is gone or no longer watched. A failed or partial cycle resolves
    nothing.
    """
    name, _, rest = key.partition("/")
    target = rest.partition("/")[0]
    if (name, target) in results:
        return not is_unknown(results[name, target])
    if checked.is_partial:
        return False
    is_readable = any(train.name == target for train in checked.context.trains)
    is_removed = f"train/{target}" not in reported and _is_removed(checked.context.site.root_path / target)
    is_read_or_removed = is_readable or is_removed
    if name == "train":
        return is_read_or_removed
    if name not in checked.watchdogs:
        return False
    watchdog = checked.watchdogs[name]
    if watchdog.needs_slurm and not checked.slurm_answers:
        return False
    return watchdog.of != "train" or is_read_or_removed


def is_unknown(result: list[Finding] | Failed) -> bool:
    return isinstance(result, Failed) or any(finding.severity is Severity.UNKNOWN for finding in result)


def _is_removed(path: Path) -> bool:
    """Return whether `path` does not exist. An unreadable path counts as existing."""
    try:
        path.lstat()
    except FileNotFoundError:
        return path.parent.is_dir()
    except OSError:
        return False
    return False
