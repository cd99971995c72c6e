"""Wait, before the body, until the disk that the trainer saves to has space.

After a single crash on a full disk, the next task starts at once: space may be free again before its first save. After
`fault_attempts` such crashes in a row, the guard waits: the next crash would hold the train, and a person or a program
often frees space within minutes.
"""

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from opsctl.guard.stop_request import read_refusal
from opsctl.launch.train_arrays import TrainArrays
from opsctl.state.events import AttemptFinalized, Diagnosed, Event
from opsctl.state.run_dir import Attempt
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
    is_due = have_filled_disk(arrays.journal.events(), crashes)
    directories = list_save_directories(run, read_settings(run)) if is_due else []
    full = find_full(directories)
    if full is None:
        return
    log.warning("%s: the disk is full; the body starts once there is space, or in %g min", full, MAX_WAIT_S / 60)
    until_s = clock.monotonic() + MAX_WAIT_S
    while full and not read_refusal(attempt) and clock.monotonic() < until_s:
        clock.sleep(LOOK_EVERY_S)
        check_switches()
        full = find_full(directories)
    log.info("the wait for space ends: %s", f"{full} is still full" if full else "there is space")


def have_filled_disk(events: Iterable[Event], crashes: int) -> bool:
    """Return whether each of the last `crashes` finalized attempts ended because a disk or a quota was full."""
    causes: dict[str, str] = {}
    ended: list[str] = []
    for event in events:
        if isinstance(event, Diagnosed):
            causes[event.attempt] = event.cause
        elif isinstance(event, AttemptFinalized):
            ended.append(event.attempt)
    last = ended[-crashes:]
    return len(last) == crashes and all(causes.get(attempt) == DISK_FULL for attempt in last)


def find_full(directories: list[Path]) -> Path | None:
    """Return the first directory whose disk has no space left, None without one."""
    return next((directory for directory in directories if is_full(directory)), None)


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
