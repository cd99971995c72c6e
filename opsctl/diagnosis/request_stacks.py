"""Request stacks from the ranks of a running attempt, by a file in the run directory or by a signal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from opsctl.diagnosis.py_spy import FILE
from opsctl.diagnosis.speakers import NOBODY, speaker_of_file
from opsctl.diagnosis.stack_dumps import Stack, parse
from opsctl.errors import OpsctlError
from opsctl.model import Job
from opsctl.ports import Clock, Runner, TimedOut
from opsctl.state.files import open_regular, read_bounded, touch, write_atomic
from opsctl.state.run_dir import Attempt

SIGNAL_SECONDS = 10.0
MAX_STACKS_BYTES = 16 << 20


def request_by_file(attempt: Attempt, target: Path, *, ranks: int, seconds: float, clock: Clock) -> None:
    """Request the stack of every rank, wait for the answers and copy them to `target`. Raises OSError."""
    stacks = attempt.path / "stacks"
    before = _sizes(stacks.glob("*.txt"))
    touch(attempt.stacks_request)
    _copy_answers(lambda: stacks.glob("*.txt"), before, target, ranks=ranks, seconds=seconds, clock=clock)


def request_by_signal(
    job: Job, logs: Path, target: Path, *, ranks: int, seconds: float, runner: Runner, clock: Clock
) -> str:
    """Send USR2 to every process of the job's steps, and keep in `target` what they write to their own logs; why that
    was not possible, if it was not. It ends a process that does not handle the signal. Raises OSError."""
    before = _sizes(logs.glob("*.log"))
    try:
        done = runner.run(("scancel", "--signal=USR2", job.id), timeout=SIGNAL_SECONDS)
    except (OpsctlError, TimedOut) as error:
        return f"USR2: {error}"
    if done.code:
        return f"USR2: {done.err.strip()[-200:]}"
    _copy_answers(lambda: logs.glob("*.log"), before, target, ranks=ranks, seconds=seconds, clock=clock)
    return ""


def collect_answers(target: Path, looked: str = "") -> list[Stack]:
    """What was kept: of each rank the newest; where py-spy and the rank itself tell, py-spy. `looked` is what it
    printed, if that is not kept there."""
    stacks: dict[tuple[str, int | None, int | None], Stack] = {}
    own = sorted(path for path in target.glob("*.txt") if path.name != FILE)
    texts = [(_read(path), speaker_of_file(f"{path.stem}.log")) for path in own]
    py_spy_file = target / FILE
    texts.append((_read(py_spy_file) if py_spy_file.exists() else looked.encode(), NOBODY))
    for text, known in texts:
        for stack in parse(text, known):
            key = (stack.node, stack.rank, None if stack.rank is not None else stack.pid)
            if stack.frames or key not in stacks:
                stacks[key] = stack
        if known.rank is not None:
            stacks.setdefault((known.node, known.rank, None), Stack(node=known.node, rank=known.rank))
    return list(stacks.values())


def _read(path: Path) -> bytes:
    """Return the stacks in a file; of a file that is too large or no file, nothing."""
    try:
        return read_bounded(path, MAX_STACKS_BYTES)
    except OSError:
        return b""


def _copy_answers(
    paths: Callable[[], Iterable[Path]], before: dict[str, int], target: Path, *, ranks: int, seconds: float,
    clock: Clock,
) -> None:  # fmt: skip
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        clock.sleep(0.25)
        grown = [name for name, size in _sizes(paths()).items() if size > before.get(name, 0)]
        if len(grown) >= ranks:
            clock.sleep(0.25)  # the last one may still be writing
            break
    target.mkdir(parents=True, exist_ok=True)
    for path in paths():
        known = before.get(path.name, 0)
        with os.fdopen(open_regular(path), "rb") as file:
            file.seek(known)
            if new := file.read(MAX_STACKS_BYTES):
                write_atomic(target / f"{path.stem}.txt", new)


def _sizes(paths: Iterable[Path]) -> dict[str, int]:
    sizes = {}
    for path in paths:
        try:
            sizes[path.name] = path.lstat().st_size
        except FileNotFoundError:
            continue
    return sizes
