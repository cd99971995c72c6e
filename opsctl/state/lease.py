"""Leases: one writer at a time in a directory of a shared file system, without the file system's locks.

A lease is a hard link. Creating a link is atomic on every file system, also where flock() is missing or only local.
"""

import contextlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from opsctl.base.errors import OpsctlError, RunDirError
from opsctl.base.nodesets import hostname
from opsctl.base.ports import Clock
from opsctl.host.processes import ProcessId
from opsctl.state.files import closing, create
from opsctl.state.records import load_record

MAX_LEASE_BYTES = 4096
MAX_TIME_S = 1e12
LEASE_STALE_S = 120.0
"""A holder needs a lease for a few Slurm commands only; clocks may differ by some seconds."""
REFRESH_S = 30.0


class LeaseBusy(OpsctlError):
    """Another process holds the lease. Safe to try again."""

    exit_code = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    host: str
    """The host name with the namespace of process ids."""
    pid: Annotated[int, range(1, 1 << 31)]
    started: int
    at: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]}"

    @property
    def has_ended(self) -> bool:
        """Whether the process is known to have ended, which is possible on this host only."""
        return self.host == _local_host() and not ProcessId(pid=self.pid, started=self.started).is_alive


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that this process holds."""

    lock: Path
    mine: Path
    clock: Clock

    def refresh(self) -> None:
        """Restart the time after which the lease is stale. Raises LeaseBusy if another process has taken the lease."""
        with contextlib.suppress(OSError):
            if self.lock.samefile(self.mine):
                # Overwrite in place: a new file would not be the linked one.
                with closing(os.open(self.mine, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as handle:
                    os.pwrite(handle, _holder(self.clock), 0)
                return
        raise LeaseBusy(f"{self.lock.parent}: another process has taken the lease")


@contextlib.contextmanager
def lease(directory: Path, clock: Clock, *, wait: float = 10.0) -> Iterator[HeldLease]:
    """Hold the lease of `directory`. Raises LeaseBusy after `wait` seconds, RunDirError if no lease can be made.

    On a full disk no lease can be made, but another process that took the lease before may still be writing: this
    process waits for the other one.
    """
    lock = directory / ".lease"
    mine = directory / f".lease.{uuid.uuid4().hex}"
    deadline = clock.monotonic() + wait
    try:
        held, has_waited = HeldLease(lock, mine, clock), False
        while not _take(lock, mine, clock):
            if _break_stale(lock, mine, clock.now().timestamp()):
                continue  # also with wait=0: the holder was killed
            if clock.monotonic() >= deadline:
                raise LeaseBusy(
                    f"{directory}: {_read(lock) or 'another process'} has been writing here for {wait:g} s",
                    hint="try again; opsctl removes the lease of a process that has ended",
                )
            clock.sleep(0.05)
            has_waited = True
        if has_waited:
            held.refresh()  # the file has the time of the first try, which may nearly be stale
        yield held
    finally:
        _give_back(lock, mine)


@contextlib.contextmanager
def lease_if_possible(
    directory: Path, clock: Clock, *, wait: float, warn: Callable[[str], None]
) -> Iterator[HeldLease | None]:
    """Hold the lease of `directory`, or go on without: on a full disk, two writers at once are better than none.

    Raises LeaseBusy as `lease` does.
    """
    with contextlib.ExitStack() as stack:
        held = None
        try:
            held = stack.enter_context(lease(directory, clock, wait=wait))
        except RunDirError as error:
            warn(f"without a lease: {error.message}")
        yield held


@contextlib.contextmanager
def refreshed(held: HeldLease) -> Iterator[None]:
    """Refresh the lease in a thread while the block runs, for work that takes minutes."""
    done = threading.Event()

    def refresh() -> None:
        while not done.wait(REFRESH_S):
            with contextlib.suppress(LeaseBusy):
                held.refresh()

    thread = threading.Thread(target=refresh, daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def is_held(directory: Path, clock: Clock) -> bool:
    """Return whether another process holds the lease of `directory`, without writing: the disk may be full."""
    lock, now = directory / ".lease", clock.now().timestamp()
    try:
        written = lock.lstat().st_mtime
        touched = now
        with contextlib.suppress(OSError):  # on a read-only file system
            os.utime(directory)  # needs no space, and shows the file system's time
            touched = directory.stat().st_mtime
        return not _is_stale(_read(lock), written, touched, now)
    except OSError:
        return False


def find_holder(directory: Path, clock: Clock) -> LeaseHolder | None:
    """Return the process that holds the lease of `directory`; None without one, and for a stale lease."""
    holder = _read(directory / ".lease")
    now = clock.now().timestamp()
    return None if holder is None or _is_stale(holder, holder.at, now, now) else holder


def _take(lock: Path, mine: Path, clock: Clock) -> bool:
    """Try to take the lease; return whether that worked.

    The file of this process is on disk before it becomes the lease: a crash must leave no empty lease.
    """
    try:
        if not mine.exists():
            create(mine, _holder(clock), mode=0o644)
        os.link(mine, lock)
    except FileExistsError:
        return False
    except OSError as error:
        if is_held(lock.parent, clock):
            return False
        raise RunDirError(
            f"{lock.parent}: cannot be locked: {error.strerror}",
            hint="the directory must be yours, with free space, on a file system with hard links",
        ) from error
    return True


def _local_host() -> str:
    """Return host name and namespace of process ids: a container may share the host's name but not its processes."""
    return f"{hostname()}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 (no file)


def _holder(clock: Clock) -> bytes:
    """Return this process and the time as JSON of constant length, so that it can be overwritten."""
    process = ProcessId.of(os.getpid())
    started = process.started if process else 0
    holder = LeaseHolder(host=_local_host(), pid=os.getpid(), started=started, at=clock.now().timestamp())
    return json.dumps(asdict(holder)).ljust(400).encode()


def _break_stale(lock: Path, mine: Path, now: float) -> bool:
    """Remove the lease if stale; return whether this process removed a stale lease."""
    try:
        before = lock.lstat()
        if not _is_stale(_read(lock), before.st_mtime, mine.lstat().st_mtime, now):
            return False
    except OSError:
        return False
    # Of several processes that read the same stale lease, only one can rename it. That one checks the renamed file.
    taken = mine.with_suffix(".broken")
    with contextlib.suppress(OSError):
        lock.rename(taken)
        after = taken.lstat()
        is_broken = (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        if not is_broken:
            os.link(taken, lock)
        taken.unlink()
        return is_broken
    return False


def _is_stale(holder: LeaseHolder | None, written: float, mine_written: float, now: float) -> bool:
    """Whether the holder has ended, or the lease is older than LEASE_STALE_S.

    A lease must be old by the clocks of both processes and by the times that the file system gave to both files: a
    clock that is hours ahead makes no lease old. If the lease is unreadable, or dated further in the future than clocks
    differ, the file system's times alone count.
    """
    if holder and holder.has_ended:
        return True
    is_old_by_clocks = holder is None or abs(now - holder.at) > LEASE_STALE_S
    return is_old_by_clocks and abs(mine_written - written) > LEASE_STALE_S


def _give_back(lock: Path, mine: Path) -> None:
    with contextlib.suppress(OSError):
        if lock.samefile(mine):
            lock.unlink()
    with contextlib.suppress(OSError):  # on a read-only file system, unlinking a missing file fails, too
        mine.unlink(missing_ok=True)


def _read(path: Path) -> LeaseHolder | None:
    """Return the holder of a lease; None if the lease is missing, empty, truncated or of another form."""
    holder = load_record(LeaseHolder, path, MAX_LEASE_BYTES)
    return holder if holder and abs(holder.at) < MAX_TIME_S else None
