"""Levels that a person has accepted as normal: of the loss, of the throughput."""

from __future__ import annotations

from opsctl.watchdogs.context import WatchdogMemory

ACCEPTING = ("loss", "throughput")
"""Watchdogs that compare with a level and can accept another one."""
_PLACE = "accepted"


def accept(memory: WatchdogMemory, key: str, *, at: str, by: str, reason: str) -> None:
    """Ask the watchdog of `key` to take the current level as normal. A failure is added to the memory's problems."""
    memory.write(_PLACE, key, {"at": at, "by": by, "reason": reason})


def read_acceptance(memory: WatchdogMemory, key: str) -> str:
    """Return when the level of `key` was last accepted; empty if never."""
    return str(memory.read(_PLACE, key).get("at", ""))
