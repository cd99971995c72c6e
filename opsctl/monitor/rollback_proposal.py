"""The checkpoint to roll back to, for a finding about the loss or a damaged checkpoint: the newest one before it."""

from collections.abc import Sequence
from dataclasses import replace

from opsctl.base.findings import Finding, Level
from opsctl.base.statements import state
from opsctl.checkpoints.scan import FoundCheckpoint, list_checkpoints_in
from opsctl.telemetry.progress.signs import find_all_directories
from opsctl.watchdogs.context import WatchedTrain

MAX_LISTED = 256
"""Checkpoints of a directory that are looked at, the newest."""
_FAILURE = "failures/"
"""Start of the keys of findings about ended attempts."""


def propose_rollback(finding: Finding, train: WatchedTrain) -> Finding:
    """Return the finding with the checkpoint and the command of a rollback, if that would help.

    The checkpoint is older than the first step in trouble, or than the damaged checkpoint that a held train cannot
    load. Finding out costs a listing of the directories.
    """
    if finding.level not in {Level.WARNING, Level.CRITICAL}:
        return finding
    if finding.key.startswith(_FAILURE):
        found = _list_checkpoints(train) if finding.level is Level.CRITICAL else []
        before = _find_damaged_step(finding, found)
    else:
        before = finding.since_step if finding.wants_rollback else None
        found = _list_checkpoints(train) if before is not None else []
    if before is None:
        return finding
    usable = [checkpoint for checkpoint in found if checkpoint.step is not None and checkpoint.step < before]
    chosen = next((checkpoint for checkpoint in usable if checkpoint.is_complete), None)
    if chosen is None:
        chosen = next((checkpoint for checkpoint in usable if not checkpoint.is_partial), None)
    if chosen is None:
        return replace(finding, roll_back=state("rollback.none", step=before))
    doubt = "" if chosen.is_complete else chosen.reason
    proposal = state("rollback.to", train=train.name, step=chosen.step, path=str(chosen.path), doubt=doubt)
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
