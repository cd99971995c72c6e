"""One writer at a time in a directory of a shared file system, without the file system's locks.

A lease is a hard link: making one is atomic everywhere, also where flock() is missing or only local.
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

STALE_AFTER = 120.0
"""Seconds. No holder keeps a lease for longer than a few commands to Slurm take; clocks may differ by some seconds."""


class LeaseBusy(OpsctlError):
    """Somebody else is writing there. Safe to try again."""

    exit_code = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    host: str
    """With its namespace of process ids."""
    pid: int
    started: int
    at: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('/')[0]}"

    def is_stale(self, now: float) -> bool:
        """Its process is gone, if it is one of this host, or it has had far more time than anybody needs."""
        if self.host == _here() and not ProcessId(pid=self.pid, started=self.started).is_alive:
            return True
        return now - self.at > STALE_AFTER


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that we hold."""

    lock: Path
    mine: Path
    clock: Clock

    def refresh(self) -> None:
        """Keep it from becoming stale; for whoever may need it for longer. Raises Busy if we no longer hold it."""
        with contextlib.suppress(OSError):
            if self.lock.samefile(self.mine):
                # In place, for a new file would not be the one that is linked.
                with self.mine.open("r+") as file:
                    file.write(_holder(self.clock))
                return
        raise LeaseBusy(f"{self.lock.parent}: the lease was taken from us")


@contextlib.contextmanager
def lease(directory: Path, clock: Clock, *, wait: float = 10.0) -> Iterator[HeldLease]:
    """Hold the lease of `directory`. Raises Busy after `wait` seconds, RunDirError where it cannot be taken at all."""
    lock = directory / ".lease"
    mine = directory / f".lease.{uuid.uuid4().hex}"
    until = clock.monotonic() + wait
    try:
        while not _take(lock, mine, clock):
            if _break_stale(lock, mine, clock.now().timestamp()):
                continue  # also for who does not want to wait: its holder was killed
            if clock.monotonic() >= until:
                raise LeaseBusy(f"{directory}: {_read(lock) or 'somebody'} has been writing here for {wait:g} s",
                           hint="try again; a lease of a process that is gone is broken by itself")  # fmt: skip
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
            hint="it needs to be yours, with free space, on a file system with hard links",
        ) from error
    return True


def _here() -> str:
    """Where process ids mean what they mean to us: a container may share its host's name, and not its processes."""
    return f"{hostname()}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 (no file)


def _holder(clock: Clock) -> str:
    """Us, now: always as long, so that it can be written over."""
    me = ProcessId.of(os.getpid())
    started = me.started if me else 0
    holder = LeaseHolder(host=_here(), pid=os.getpid(), started=started, at=clock.now().timestamp())
    return json.dumps(asdict(holder)).ljust(400)


def _break_stale(lock: Path, mine: Path, now: float) -> bool:
    """Whether the lease was stale and is broken now, by us."""
    lease_holder = _read(lock)
    if lease_holder is None or not lease_holder.is_stale(now):
        return False
    # Renaming is the vote: of several that saw the same stale lease, one gets it, and looks at what it got.
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
    with contextlib.suppress(OSError):  # on a read-only file system not even what is not there can be unlinked
        mine.unlink(missing_ok=True)


def _read(path: Path) -> LeaseHolder | None:
    try:
        return LeaseHolder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
