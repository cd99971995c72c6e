"""How fast a file system fills: from the trains' checkpoints, and from the observed usage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from opsctl.checkpoints.discovery import find_saves, size_of
from opsctl.watchdogs.checkpoint import expected_s, trainer_checkpoint
from opsctl.watchdogs.context import WatchedTrain

WATCHED_S = 6 * 3600.0
"""Minimum observation for a rate: over a shorter time, copying and deleting files hides the trend."""
REMEMBERED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth by one train's checkpoints."""

    train: str
    size: int
    inodes: int
    every_s: float
    newest: datetime
    """Time of the newest checkpoint."""
    replaces: bool
    """Whether every new checkpoint replaces an old one."""

    @property
    def bytes_s(self) -> float:
        return 0.0 if self.replaces else self.size / self.every_s

    @property
    def inodes_s(self) -> float:
        return 0.0 if self.replaces else self.inodes / self.every_s


def measure_growth(train: WatchedTrain, path: str, sizes: dict[str, Any]) -> Growth | None:
    """Return the train's growth on the file system at `path`.

    None if the train stores checkpoints elsewhere, is not queued, or has no checkpoint yet. The size of a checkpoint is
    measured once and stored in `sizes`. Raises OSError.
    """
    directory = train.run.checkpoints
    if train.snapshot is None or not train.snapshot.is_queued or not _is_on(directory, path):
        return None
    saves = find_saves(directory, embedded=train.run.trainer_config.exists())
    every_s = expected_s(train) or _usual_s([save.at for save in saves])
    if not saves or not every_s:
        return None
    # The newest of a foreign trainer may still be being written.
    whole = saves[-2] if len(saves) > 1 and not saves[-1].step else saves[-1]
    key = f"{train.name}/{whole.path.name}"
    if key not in sizes:
        sizes[key] = size_of(whole.path)
        for old in list(sizes)[:-REMEMBERED]:
            del sizes[old]
    size, inodes = sizes[key]
    keep = trainer_checkpoint(train).get("keep_last", 0)
    return Growth(
        train=train.name,
        size=size,
        inodes=inodes,
        every_s=every_s,
        newest=saves[-1].at,
        replaces=0 < keep <= len(saves),
    )


def _is_on(directory: os.PathLike[str], path: str) -> bool:
    try:
        return os.stat(directory).st_dev == os.stat(path).st_dev  # noqa: PTH116 (two kinds of path)
    except OSError:
        return False


def _usual_s(times: Sequence[datetime]) -> float | None:
    gaps = [(b - a).total_seconds() for a, b in pairwise(times) if b > a]
    return median(gaps[-20:]) if gaps else None


def measure_observed(samples: Sequence[Sequence[float]]) -> float | None:
    """Bytes a second since the oldest sample; None if that is not long ago, or if it became less."""
    if len(samples) < 2:
        return None
    (first, before), (last, after) = samples[0], samples[-1]
    return (after - before) / (last - first) if last - first >= WATCHED_S and after > before else None
