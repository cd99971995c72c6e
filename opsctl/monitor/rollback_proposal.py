"""The checkpoint to roll back to, for a finding about the loss: the newest complete one before the trouble."""

from __future__ import annotations

import re
from dataclasses import replace

from opsctl.checkpoints.scan import FoundCheckpoint, list_found
from opsctl.model import Finding, Level
from opsctl.telemetry.progress.signs import find_directories
from opsctl.watchdogs.context import WatchedTrain

_STEP = re.compile(r"\bstep (\d+)", re.ASCII)
ASKS = "roll back"
"""Part of the remedies after which training is repeated from a checkpoint."""


def find_trouble_step(finding: Finding) -> int | None:
    """Return the first step that a finding about the loss names; None if it names none."""
    steps = [int(number) for number in _STEP.findall(" ".join((finding.summary, *finding.evidence)))]
    return min(steps, default=None)


def propose_rollback(finding: Finding, train: WatchedTrain) -> Finding:
    """Return the finding with the checkpoint and the command of a rollback, if its remedy asks for that.

    The checkpoint is older than every step that the finding names. Finding out costs a listing of the directories.
    """
    if finding.level not in {Level.WARNING, Level.CRITICAL} or ASKS not in finding.remedy:
        return finding
    before = find_trouble_step(finding)
    if before is None:
        return finding
    found: list[FoundCheckpoint] = []
    for directory in find_directories(train.run, train.config):
        found += list_found(directory.path)
    earlier = {
        checkpoint.step: checkpoint.path
        for checkpoint in found
        if checkpoint.is_complete and checkpoint.step is not None and checkpoint.step < before
    }
    if not earlier:
        return replace(finding, rollback=f"no complete checkpoint before step {before} is known")
    step = max(earlier)
    return replace(finding, rollback=f"step {step}: opsctl rollback {train.name} --to {step} ({earlier[step]})")
