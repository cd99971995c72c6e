"""Request stacks from the ranks of a running attempt, by a file in the run directory or by a signal."""

import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Clock
from opsctl.diagnosis.line_origin import UNKNOWN_ORIGIN, origin_of_file
from opsctl.diagnosis.py_spy import FILE_NAME
from opsctl.diagnosis.stack_dumps import Stack, parse
from opsctl.state.files import make_directories, read_bounded, read_range, touch, write_atomic
from opsctl.state.run_dir import Attempt
from opsctl.telemetry.logs.log_lines import read_line

POLL_S = 0.25
MAX_STACKS_BYTES = 16 << 20


def request_by_file(attempt: Attempt, target: Path, *, ranks: int, timeout_s: float, clock: Clock) -> None:
    """Request the stack of every rank, wait up to `timeout_s` for the answers, copy the answers to `target`.

    Raises OSError.
    """
    ask = functools.partial(touch, attempt.stacks_request)
    _request(ask, attempt.path / "stacks", "*.txt", target, ranks=ranks, timeout_s=timeout_s, clock=clock)


def request_by_signal(
    send_usr2: Callable[[], None], logs: Path, target: Path, *, ranks: int, timeout_s: float, clock: Clock
) -> str:
    """Call `send_usr2`, wait up to `timeout_s` for the ranks' answers in `logs`, copy new log lines to `target`.

    Return the failure, an empty string for success. USR2 ends a process that does not handle USR2. Raises OSError.
    """
    try:
        _request(send_usr2, logs, "*.log", target, ranks=ranks, timeout_s=timeout_s, clock=clock)
    except OpsctlError as error:
        return f"USR2: {error}"
    return ""


def collect_answers(target: Path, py_spy_output: str = "") -> list[Stack]:
    """Return the newest stack of every rank in `target`; a stack of py-spy overrules the rank's own.

    `py_spy_output` is the output of py-spy, for a `target` without it.
    """
    stacks: dict[tuple[str, int | None, int | None], Stack] = {}
    own = sorted(path for path in target.glob("*.txt") if path.name != FILE_NAME)
    texts = [(_read(path), origin_of_file(f"{path.stem}.log")) for path in own]
    py_spy_file = target / FILE_NAME
    texts.append((_read(py_spy_file) if py_spy_file.exists() else py_spy_output.encode(), UNKNOWN_ORIGIN))
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


def _request(
    ask: Callable[[], None], directory: Path, names: str, target: Path, *, ranks: int, timeout_s: float, clock: Clock
) -> None:
    """Ask, wait until `ranks` ranks have written to files of these names, and copy the new bytes of every file."""
    before = _measure_sizes(directory.glob(names))
    ask()
    deadline = clock.monotonic() + timeout_s
    while clock.monotonic() < deadline:
        clock.sleep(POLL_S)
        grown = [name for name, size in _measure_sizes(directory.glob(names)).items() if size > before.get(name, 0)]
        if sum(_count_origins(directory / name, before.get(name, 0)) for name in grown) >= ranks:
            clock.sleep(POLL_S)  # the last rank may still be writing
            break
    make_directories(target)
    for path in directory.glob(names):
        if new := read_range(path, before.get(path.name, 0), MAX_STACKS_BYTES)[0]:
            write_atomic(target / f"{path.stem}.txt", new)


def _count_origins(path: Path, begin: int) -> int:
    """Return how many ranks have written to a file since it had `begin` bytes."""
    lines = read_range(path, begin, MAX_STACKS_BYTES)[0].split(b"\n")
    return len({read_line(line).rank for line in lines} - {None}) or 1  # the log of a rank has no prefixes


def _measure_sizes(paths: Iterable[Path]) -> dict[str, int]:
    sizes = {}
    for path in paths:
        with suppress(FileNotFoundError):
            sizes[path.name] = path.lstat().st_size
    return sizes
