"""The checkpoint to roll back to, for a finding about the loss or a damaged checkpoint: the newest one before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from opsctl.base.model import Finding, Level
from opsctl.checkpoints.scan import FoundCheckpoint, list_checkpoints_in
from opsctl.telemetry.progress.signs import find_directories, read_log_signs
from opsctl.watchdogs.context import WatchedTrain

_STEP = re.compile(r"\bstep (\d+)", re.ASCII)
ASKS = "roll back"
"""Part of the remedies after which training is repeated from a checkpoint."""
MAX_LISTED = 256
"""Checkpoints of a directory that are looked at, the newest."""
_FAILURE = "failures/"
"""Keys of findings about ended attempts. Their texts name steps and checkpoints of any kind."""


def find_trouble_step(finding: Finding) -> int | None:
    """Return the first step that a finding about the loss names; None if it names none."""
    steps = [int(number) for number in _STEP.findall(" ".join((finding.summary, *finding.evidence)))]
    return min(steps, default=None)


def propose_rollback(finding: Finding, train: WatchedTrain) -> Finding:
    """Return the finding with the checkpoint and the command of a rollback, if that would help.

    The checkpoint is older than every step that a finding about the loss names, or than the damaged checkpoint that a
    held train cannot load. Finding out costs a listing of the directories.
    """
    if finding.level not in {Level.WARNING, Level.CRITICAL}:
        return finding
    if finding.key.startswith(_FAILURE):
        found = _list_checkpoints(train) if finding.level is Level.CRITICAL else []
        before = _find_damaged_step(finding, found)
    else:
        before = find_trouble_step(finding) if ASKS in finding.remedy else None
        found = _list_checkpoints(train) if before is not None else []
    if before is None:
        return finding
    usable = [checkpoint for checkpoint in found if checkpoint.step is not None and checkpoint.step < before]
    chosen = next((checkpoint for checkpoint in usable if checkpoint.is_complete), None)
    if chosen is None:
        chosen = next((checkpoint for checkpoint in usable if not checkpoint.is_partial), None)
    if chosen is None:
        return replace(finding, rollback=f"no complete checkpoint before step {before} is known")
    doubt = "" if chosen.is_complete else f"; nothing shows whether it is complete: {chosen.reason}"
    command = f"opsctl rollback {train.name} --to {chosen.step}"
    return replace(finding, rollback=f"step {chosen.step}: {command} ({chosen.path}{doubt})")


def _list_checkpoints(train: WatchedTrain) -> list[FoundCheckpoint]:
    """Return the checkpoints of the train, the highest step first."""
    logged = read_log_signs(train.run.main_log, 0, train.config.progress.pattern).saved_paths
    directories = [directory.path for directory in find_directories(train.run, train.config, logged=logged)]
    return list_checkpoints_in(directories, MAX_LISTED)


def _find_damaged_step(finding: Finding, found: Sequence[FoundCheckpoint]) -> int | None:
    """Return the step of the damaged checkpoint that the evidence names; None if no checkpoint is to blame.

    If the remedy asks for a rollback and no file shows the damage, the newest checkpoint is the one that was loaded.
    """
    text = " ".join((finding.summary, *finding.evidence))
    asks = ASKS in finding.remedy
    stepped = [checkpoint for checkpoint in found if checkpoint.step is not None]
    for checkpoint in stepped:
        is_named = re.search(rf"(?<![\w.-]){re.escape(checkpoint.path.name)}(?![\w-])", text) is not None
        if (is_named or asks) and checkpoint.is_partial:
            return checkpoint.step
        if asks and (is_named or not checkpoint.is_complete):
            return checkpoint.step
    return stepped[0].step if stepped and asks else None
