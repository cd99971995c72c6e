"""Findings for open alerts that no watchdog reported in a cycle: a node that the train left, a removed train."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.alerts.ledger_state import LedgerEntry
from opsctl.base.findings import Finding, Level
from opsctl.base.ports import Watchdog
from opsctl.base.statements import state
from opsctl.host.isolation import Failed
from opsctl.watchdogs.context import WatchContext
from opsctl.watchdogs.node_health import end_finding, judge_left_node


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedParts:
    context: WatchContext
    watchdogs: Mapping[str, Watchdog[WatchContext, Any, Any]]
    is_partial: bool
    """Whether only some trains were checked."""
    slurm_answers: bool


def judge_vanished(
    checked: CheckedParts,
    results: Mapping[tuple[str, str], Any],
    levels: Mapping[str, LedgerEntry],
    findings: Collection[Finding],
) -> list[Finding]:
    """Return findings for the open alerts of `levels` without one: ok if the subject is gone.

    `results` are those of the watchdogs, by watchdog and target. A node that a train has left is over once the node
    itself is healthy again.
    """
    reported = {finding.key for finding in findings}
    judged = []
    for key, entry in levels.items():
        if entry.level is Level.OK or key in reported or not _has_vanished(checked, results, key):
            continue
        says = state("site.vanished", key=key)
        finding = entry.finding or Finding(key=key, level=Level.OK, says=says)
        if is_node_alert(key):
            judged += judge_left_node(checked.context, finding)
        else:
            judged.append(end_finding(finding, says))
    return judged


def is_node_alert(key: str) -> bool:
    return key.startswith("node_health/") and key.count("/") == 2


def _has_vanished(checked: CheckedParts, results: Mapping[tuple[str, str], Any], key: str) -> bool:
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
    is_read_or_removed = is_readable or _is_removed(checked.context.site.root_path / target)
    if name == "train":
        return is_read_or_removed
    if name not in checked.watchdogs:
        return False
    watchdog = checked.watchdogs[name]
    if watchdog.needs_slurm and not checked.slurm_answers:
        return False
    return watchdog.of != "train" or is_read_or_removed


def is_unknown(result: list[Finding] | Failed) -> bool:
    return isinstance(result, Failed) or any(finding.level is Level.UNKNOWN for finding in result)


def _is_removed(path: Path) -> bool:
    """Return whether `path` does not exist. An unreadable path counts as existing."""
    try:
        path.lstat()
    except FileNotFoundError:
        return path.parent.is_dir()
    except OSError:
        return False
    return False
