"""Wait, before the body, until the disk that the trainer saves to has space.

After a single crash on a full disk, the next task starts at once: space may be free again before its first save. After
`fault_attempts` such crashes in a row, the guard waits: the next crash would hold the train, and a person or a program
often frees space within minutes.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from opsctl.guard.stop_request import read_refusal
from opsctl.launch.train_arrays import TrainArrays
from opsctl.state.journal import TrainHistory, replay
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.progress.signs import list_save_directories
from opsctl.telemetry.progress.train_settings import read_settings

log = logging.getLogger(__name__)
DISK_FULL = "storage-full"
"""The cause of attempts that ended because a disk or a quota was full."""
MIN_FREE_BYTES = 1 << 20
"""No checkpoint is smaller than the rest that a full disk may have."""
MIN_FREE_SHARE = 0.01
"""The same of a small disk."""
MAX_WAIT_S = 600.0
LOOK_EVERY_S = 1.0


def await_space(arrays: TrainArrays, attempt: Attempt, crashes: int, *, check_switches: Callable[[], None]) -> None:
    """Wait while a directory of checkpoints is on a full disk, if the last `crashes` attempts ended on a full disk.

    Waits MAX_WAIT_S at most, and ends at once at a stop request.
    """
    clock, run = arrays.journal.clock, arrays.run
    full = find_awaited(run, replay(arrays.journal.events()), crashes)
    if full is None:
        return
    log.warning("%s: the disk is full; the body starts once there is space, or in %g min", full, MAX_WAIT_S / 60)
    until_s = clock.monotonic() + MAX_WAIT_S
    while full and not read_refusal(attempt) and clock.monotonic() < until_s:
        clock.sleep(LOOK_EVERY_S)
        check_switches()
        full = full if is_full(full) else find_full(run)
    log.info("the wait for space ends: %s", f"{full} is still full" if full else "there is space")


def find_awaited(run: RunDir, history: TrainHistory, crashes: int) -> Path | None:
    """Return the directory on a full disk for which an attempt waits, None if it need not wait."""
    return find_full(run) if have_filled_disk(history, crashes) else None


def have_filled_disk(history: TrainHistory, crashes: int) -> bool:
    """Return whether each of the last `crashes` finalized attempts ended because a disk or a quota was full."""
    last = [history.diagnosed.get(attempt) for attempt in list(history.finalized)[-crashes:]]
    return len(last) == crashes and all(diagnosis and diagnosis.cause == DISK_FULL for diagnosis in last)


def find_full(run: RunDir) -> Path | None:
    """Return the first directory of checkpoints whose disk has no space left, None without one."""
    return next(filter(is_full, list_save_directories(run, read_settings(run))), None)


def is_full(directory: Path) -> bool:
    """Return whether nothing can be written below a directory for lack of space. Unknown is not full."""
    try:
        existing = next(path for path in (directory, *directory.parents) if path.exists())
        stats = os.statvfs(existing)
    except OSError:
        return False
    if stats.f_blocks == 0 or stats.f_flag & os.ST_RDONLY:
        return False
    free = stats.f_bfree if os.geteuid() == 0 else stats.f_bavail
    return free * stats.f_frsize < min(MIN_FREE_BYTES, MIN_FREE_SHARE * stats.f_blocks * stats.f_frsize)
