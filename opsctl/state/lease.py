"""Leases: one writer at a time in a directory of a shared file system, without the file system's locks.

A lease is a hard link. Creating a link is atomic on every file system, also where flock() is missing or only local.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from opsctl.errors import OpsctlError, RunDirError
from opsctl.host.processes import ProcessId
from opsctl.host.system import hostname
from opsctl.ports import Clock

LEASE_STALE_S = 120.0
"""A holder needs a lease for a few Slurm commands only; clocks may differ by some seconds."""


class LeaseBusy(OpsctlError):
    """Another process holds the lease. Safe to try again."""

    exit_code = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    host: str
    """The host name with the namespace of process ids."""
    pid: int
    started: int
    at: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]}"

    def is_stale(self, now: float) -> bool:
        """Whether the process has ended (known on this host only) or the lease is older than LEASE_STALE_S."""
        if self.host == _local_host() and not ProcessId(pid=self.pid, started=self.started).is_alive:
            return True
        return now - self.at > LEASE_STALE_S


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
                with self.mine.open("r+") as file:
                    file.write(_holder(self.clock))
                return
        raise LeaseBusy(f"{self.lock.parent}: another process has taken the lease")


@contextlib.contextmanager
def lease(directory: Path, clock: Clock, *, wait: float = 10.0) -> Iterator[HeldLease]:
    """Hold the lease of `directory`. Raises LeaseBusy after `wait` seconds, RunDirError if no lease can be made."""
    lock = directory / ".lease"
    mine = directory / f".lease.{uuid.uuid4().hex}"
    deadline = clock.monotonic() + wait
    try:
        while not _take(lock, mine, clock):
            if _break_stale(lock, mine, clock.now().timestamp()):
                continue  # also with wait=0: the holder was killed
            if clock.monotonic() >= deadline:
                raise LeaseBusy(
                    f"{directory}: {_read(lock) or 'another process'} has been writing here for {wait:g} s",
                    hint="try again; opsctl removes the lease of a process that has ended",
                )
            clock.sleep(0.05)
        yield HeldLease(lock, mine, clock)
    finally:
        _give_back(lock, mine)


def _take(lock: Path, mine: Path, clock: Clock) -> bool:
    try:
        mine.write_text(_holder(clock))
        os.link(mine, lock)
    except FileExistsError:
        return False
    except OSError as error:
        raise RunDirError(
            f"{lock.parent}: cannot be locked: {error.strerror}",
            hint="the directory must be yours, with free space, on a file system with hard links",
        ) from error
    return True


def _local_host() -> str:
    """Return host name and namespace of process ids: a container may share the host's name but not its processes."""
    return f"{hostname()}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 (no file)


def _holder(clock: Clock) -> str:
    """Return this process and the time as JSON of constant length, so that it can be overwritten."""
    process = ProcessId.of(os.getpid())
    started = process.started if process else 0
    holder = LeaseHolder(host=_local_host(), pid=os.getpid(), started=started, at=clock.now().timestamp())
    return json.dumps(asdict(holder)).ljust(400)


def _break_stale(lock: Path, mine: Path, now: float) -> bool:
    """Remove the lease if stale; return whether this process removed a stale lease."""
    lease_holder = _read(lock)
    if lease_holder is None or not lease_holder.is_stale(now):
        return False
    # Of several processes that read the same stale lease, only one can rename it. That one checks the renamed file.
    taken = mine.with_suffix(".broken")
    with contextlib.suppress(OSError):
        lock.rename(taken)
        is_broken = _read(taken) == lease_holder
        if not is_broken:
            os.link(taken, lock)
        taken.unlink()
        return is_broken
    return False


def _give_back(lock: Path, mine: Path) -> None:
    with contextlib.suppress(OSError):
        if lock.samefile(mine):
            lock.unlink()
    with contextlib.suppress(OSError):  # on a read-only file system, unlinking a missing file fails, too
        mine.unlink(missing_ok=True)


def _read(path: Path) -> LeaseHolder | None:
    try:
        return LeaseHolder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
