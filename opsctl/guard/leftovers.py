"""End what an earlier start left behind on this node: `python -P -m opsctl.guard.leftovers RUN_DIR ATTEMPT SECONDS`.

Runs on every node that is used again, before the next start, with nothing but the standard library. A process belongs
to the earlier start if its environment names the run directory and the attempt, as that of the body and of all below it
does. On a machine with several sandboxes, trains have attempts of the same name. Prints the name of the node once none
is left.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

SHARED_MEMORY = ("nccl-", "torch_", "psm_", "__KMP_", "sem.mp-")
"""Files below /dev/shm that ranks leave behind when they are killed."""
LOOK_EVERY_S = 0.05


def find_leftovers(run_dir: str, attempt: str) -> list[int]:
    """Return the processes of this user that belong to an attempt, without this one and those above it."""
    marks = {os.fsencode(f"TRAIN_RUN_DIR={run_dir}"), f"TRAIN_ATTEMPT={attempt}".encode()}
    own, found = _list_own(), []
    for entry in os.scandir("/proc"):
        with suppress(OSError):
            if entry.name.isdecimal() and int(entry.name) not in own and entry.stat().st_uid == os.geteuid():
                environment = Path(entry.path, "environ").read_bytes()
                found += [int(entry.name)] * marks.issubset(environment.split(b"\0"))
    return found


def _list_own() -> set[int]:
    """Return this process and those above it."""
    pids, pid = set(), os.getpid()
    while pid > 1:
        pids.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pids


def remove_shared_memory(directory: Path = Path("/dev/shm")) -> None:  # noqa: S108 (where ranks put it)
    """Remove files of killed ranks that no process has mapped any more."""
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped.update(line.split()[-1] for line in maps.read_text().splitlines() if str(directory) in line)
    for path in directory.glob("*"):
        with suppress(OSError):
            if path.name.startswith(SHARED_MEMORY) and str(path) not in mapped and path.lstat().st_uid == os.geteuid():
                path.unlink()


def main(argv: list[str]) -> int:
    """Kill the processes of the attempt until none is left or the time is over; return 1 if one is left."""
    run_dir, attempt, limit_s = argv[0], argv[1], float(argv[2])
    until_s = time.monotonic() + limit_s
    while pids := find_leftovers(run_dir, attempt):
        if time.monotonic() > until_s:
            sys.stderr.write(f"processes of {attempt} cannot be ended: {pids}\n")
            return 1
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_EVERY_S)
    remove_shared_memory()
    sys.stdout.write(f"{os.environ.get('SLURMD_NODENAME', '')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
