"""Stop signals for the processes of a rank. For rank.py: standard library only, quick to import.

COMMAND is often a shell script or a launcher, and the trainer runs below. Shells and programs without a handler get the
signal together with the programs that they run, as from Slurm alone. A trainer that outlives them gets time to save.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from opsctl.guard.rank_activity import processes

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "busybox"))
FILTERS = frozenset(("tee", "cat", "grep", "sed", "awk", "gawk", "mawk", "ts", "stdbuf", "logger"))
"""Programs that carry the output of a trainer, and end with it: a trainer must not lose its output while it saves."""
RUNTIME_SIGNALS = (signal.SIGURG, signal.SIGPROF, signal.SIGIO, signal.SIGSYS)
"""Signals that no trainer catches. The runtime of Go catches every signal, also in programs that react to none."""
PASS_ON_S = 10.0
"""Time for a launcher's own signal to reach the trainer."""
SAVE_S = 120.0
"""Time for a trainer that outlives its launcher; the default of `stop_grace_seconds`."""


def send(command: int, number: int) -> None:
    """Send a signal to COMMAND; a stop signal also to the programs below, if COMMAND does not pass it on."""
    for pid in list_receivers(command, number) if number in STOP_SIGNALS else [command]:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def list_receivers(pid: int, number: int) -> list[int]:
    """Return a process and the programs below that it leaves without the signal; not those that carry output."""
    pids, waiting = [], [pid]
    children: dict[int, list[int]] = {}
    while waiting:
        pids.append(waiting.pop())
        if read_name(pids[-1]) in SHELLS or not catches(pids[-1], number):
            children = children or map_children()
            waiting += [child for child in children.get(pids[-1], ()) if read_name(child) not in FILTERS]
    return pids


def find_stop_signal(code: int) -> int:
    """Return the stop signal that ended a process, or that its exit code names as a shell does; 0 for another end."""
    number = -code if code < 0 else code - 128
    return number if number in STOP_SIGNALS else 0


def await_programs(number: int, *, holds_back: bool) -> Iterator[None]:
    """Yield until the programs that outlive COMMAND have reacted to the stop signal that ended COMMAND.

    Called by the process that adopts them. No program is waited for that does not catch the signal, nor a helper such
    as wandb-core, which catches every signal. With `holds_back`, COMMAND caught the signal and may not have
    passed it on: a program that still runs after PASS_ON_S gets the signal as well.
    """
    own = os.getpid()
    begin_s = time.monotonic()
    while (pids := list_savers(own, number)) and time.monotonic() < begin_s + SAVE_S:
        if holds_back and time.monotonic() > begin_s + PASS_ON_S:
            holds_back = False
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        yield


def list_savers(pid: int, number: int) -> list[int]:
    """Return the descendants of a process that may save after the signal: they catch it, but not every signal."""
    caught = {below: read_caught(below) for below in list_below(pid)}
    return [
        below
        for below, numbers in caught.items()
        if is_caught(numbers, number) and not all(is_caught(numbers, runtime) for runtime in RUNTIME_SIGNALS)
    ]


def catches(pid: int, number: int) -> bool:
    """Return whether a process that runs has a handler for the signal."""
    return is_caught(read_caught(pid), number)


def is_caught(mask: int, number: int) -> bool:
    """Return whether the kernel's mask of caught signals holds the signal."""
    return bool(mask >> (number - 1) & 1)


def read_caught(pid: int) -> int:
    """Return the signals for which a process that runs has a handler, as the kernel's mask."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/status", errors="replace") as file:  # noqa: PTH123 (pathlib takes longer to import than all the rest)
        rows = dict(line.split(":", 1) for line in file if ":" in line)
        return 0 if rows["State"].split()[0] in "ZX" else int(rows["SigCgt"], 16)
    return 0


def list_below(pid: int) -> list[int]:
    """Return all descendants of a process."""
    children = map_children()
    below = list(children.get(pid, ()))
    for child in below:  # grows on the way
        below += children.get(child, ())
    return below


def list_children(pid: int) -> list[int]:
    return map_children().get(pid, [])


def map_children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, (_, parent, _) in processes():
        children.setdefault(parent, []).append(pid)
    return children


def read_name(pid: int) -> str:
    """Return the name of a program, also of one that has ended and is not waited for; empty if unknown."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:  # noqa: PTH123 (as above)
        return file.read().strip()
    return ""
