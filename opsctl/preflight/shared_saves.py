"""Directories of checkpoints that a train would share with another train in the queue."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.base.model import Job
from opsctl.settings.loader import TrainSettings
from opsctl.state.files import is_regular
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.signs import find_directories
from opsctl.telemetry.progress.train_settings import read_settings

_COMMENT = re.compile(r"opsctl:(\w[\w.-]*):\w+", re.ASCII)
MAX_TRAINS = 50
"""Other trains that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSave:
    """A directory of this train, and the train that saves there as well."""

    path: str
    reason: str
    """Where this train names the directory."""
    train: str
    other_path: str
    """The directory of the other train: the same, one above or one below."""


def find_shared_saves(run: RunDir, train: TrainSettings, jobs: Sequence[Job]) -> list[SharedSave]:
    """Return the directories shared with trains of the same root that run or wait. Raises nothing."""
    own = _list_directories(run, train)
    shared: list[SharedSave] = []
    for name in list_queued_trains(jobs)[:MAX_TRAINS]:
        other = RunDir(run.path.parent / name)
        settings = read_settings(other) if name != run.name and is_regular(other.config) else None
        theirs = _list_directories(other, settings) if settings else {}
        for path, reason in own.items():
            meeting = next((at for at in theirs if path.is_relative_to(at) or at.is_relative_to(path)), None)
            if meeting:
                shared.append(SharedSave(path=str(path), reason=reason, train=name, other_path=str(meeting)))
    return shared


def list_queued_trains(jobs: Sequence[Job]) -> list[str]:
    """Return the names of the trains with jobs that have not ended, by the comments `opsctl:NAME:NONCE`.

    Any user can write such a comment: a name with a slash does not count.
    """
    comments = [_COMMENT.fullmatch(job.comment) for job in jobs if not job.state.is_final]
    return list(dict.fromkeys(comment[1] for comment in comments if comment))


def _list_directories(run: RunDir, train: TrainSettings) -> Mapping[Path, str]:
    """Return the real paths of the directories that a train names, with the reasons; not its run directory."""
    if train.trainer is not None:
        return {}
    run_path = Path(os.path.realpath(run.path))
    found = {Path(os.path.realpath(found.path)): found.reason for found in find_directories(run, train)}
    return {path: reason for path, reason in found.items() if not path.is_relative_to(run_path)}
