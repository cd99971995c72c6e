"""Make hostile inputs and feed them to a parser, within 5 s and 200 MB for each input."""

import contextlib
import functools
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from opsctl.base.errors import OpsctlError
from opsctl.trainer.errors import Refused

CORPUS = Path(__file__).parents[1] / "corpus"
MAX_CASE_S = 5.0
MAX_CASE_BYTES = 200 << 20
MAX_SAMPLE_BYTES = 1500
"""Of a recorded file, so that a million cases take minutes."""
MAX_SAMPLES = 60
MAX_CASE_SIZE = 400_000
MAX_SHOWN = 200

TOKENS: tuple[bytes, ...] = (
    b"\0", b"\n", b"\r", b"\t", b" ", b"'", b'"', b"`", b"$(id)", b";", b"|", b"&", b"<", b">", b"\\", b"%", b"%s",
    b"{}", b"{{", b"}}", b"[", b"]", b"{", b"}", b",", b":", b"=", b"-", b"--", b"#", b"@", b"/", b"../", b"~", b"*",
    b"null", b"true", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"0", b"1e-999", b"9" * 30, b"9" * 4400,
    b"0x7fffffffffffffff", b"18446744073709551616", b"2147483648", b"-9223372036854775809", b"1970-01-01T00:00:00",
    b"0001-01-01T00:00:00+14:00", b"9999-12-31T23:59:59-12:00", b"2026-02-31 25:61:61", b"\xff", b"\xc3\x28",
    b"\xed\xa0\x80", "\u202e".encode(), "\u200b".encode(), "\u2028".encode(),
    "\u0085".encode(), "²".encode(), "٣".encode(), b"\x1b[2J",
    b"\x1b]0;x\x07", b"\x1fmark", b"mark", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"<!--", b"&amp;", b"node[1-99999999]",
    b"node[1-2,", b"[[[[[[", b'{"a":', b"unlimited", b"N/A", b"(null)", b"Unknown", b"None", b"iteration", b" | ",
)  # fmt: skip
"""Texts at which parsers have failed elsewhere."""


class TooSlow(BaseException):
    """A case took more than MAX_CASE_S of processor time. No parser catches a BaseException."""


@dataclass(frozen=True)
class FuzzTarget:
    """A parser, the errors that its docstring promises, and recorded inputs to start from."""

    call: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = (OpsctlError,)
    corpus: tuple[str, ...] = ()
    """Globs below tests/corpus."""
    examples: tuple[bytes, ...] = ()

    def samples(self) -> tuple[bytes, ...]:
        return (*self.examples, *_read_corpus(self.corpus), *_read_corpus(("crashes/*.bin",)), b"")


@functools.cache
def _read_corpus(globs: tuple[str, ...]) -> tuple[bytes, ...]:
    samples = []
    for pattern in globs:
        for path in sorted(CORPUS.glob(pattern))[:MAX_SAMPLES]:
            data = path.read_bytes()
            samples.append(data[:MAX_SAMPLE_BYTES])
            if len(data) > MAX_SAMPLE_BYTES:
                middle = len(data) // 2
                samples += [data[middle : middle + MAX_SAMPLE_BYTES], data[-MAX_SAMPLE_BYTES:]]
    return tuple(samples)


def make_case(samples: Sequence[bytes], random: Random) -> bytes:
    """Return an input: random bytes, tokens, or a recorded input with a few changes."""
    kind = random.random()
    if kind < 0.08:
        return random.randbytes(random.randrange(300))
    if kind < 0.2:
        return b"".join(random.choices(TOKENS, k=random.randrange(12)))
    data = random.choice(samples)
    if kind < 0.22:
        return _pump(data, random)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        data = random.choice(CHANGES)(data, random, samples)
    return data[:MAX_CASE_SIZE]


def _pump(data: bytes, random: Random) -> bytes:
    """Repeat a token, or a piece of a recorded input, at its place: what takes a time of the square of its size."""
    place = random.randrange(len(data) + 1)
    piece = random.choice((random.choice(TOKENS), data[place : place + random.choice((1, 5, 30))]))
    return data[:place] + (piece * random.choice((1000, 20_000)))[:MAX_CASE_SIZE] + data[place:]


def _flip(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + random.randbytes(1) + data[place + 1 :]


def _insert(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + random.choice(TOKENS) + data[place:]


def _overwrite(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    place, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    return data[:place] + random.choice(TOKENS) + data[min(end, place + 20) :]


def _cut(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    place, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    return data[:place] + data[end:]


def _truncate(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _repeat(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    place = random.randrange(len(data) + 1)
    piece = data[place : place + random.choice((1, 3, 20))]
    return data[:place] + piece * random.choice((2, 5, 50)) + data[place:]


def _splice(data: bytes, random: Random, samples: Sequence[bytes]) -> bytes:
    other = random.choice(samples)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _replace_number(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    digits = [place for place, byte in enumerate(data[:MAX_SAMPLE_BYTES]) if 48 <= byte < 58]
    if not digits:
        return data
    end = place = random.choice(digits)
    while end < len(data) and 48 <= data[end] < 58:
        end += 1
    number = random.choice(
        (b"-1", b"0", b"9" * 25, b"9" * 4400, b"1e999", b"nan", b"2147483648", b"null", b'""', b"[]")
    )
    return data[:place] + number + data[end:]


CHANGES = (_flip, _insert, _overwrite, _cut, _truncate, _repeat, _splice, _replace_number, _replace_number)


@contextlib.contextmanager
def bounded_memory(limit_bytes: int = MAX_CASE_BYTES) -> Iterator[None]:
    """Let this process take only `limit_bytes` more memory than now. More raises MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def bounded_time() -> Iterator[None]:
    """Raise TooSlow where a case takes too much time of the processor, by `start_case`."""

    def stop(_number: int, _frame: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def find_failure(target: FuzzTarget, data: bytes) -> str:
    """Return how the parser fails on this input: an undocumented error, too slow, too large. Empty if it holds."""
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CASE_S)
    try:
        target.call(data)
    except target.errors as error:
        is_shown = isinstance(error, OpsctlError | Refused)
        return (
            "" if len(str(error)) <= MAX_MESSAGE_CHARS or not is_shown else f"a message of {len(str(error))} characters"
        )
    except TooSlow:
        return f"more than {MAX_CASE_S:g} s"
    except MemoryError:
        return f"more than {MAX_CASE_BYTES >> 20} MB"
    except Exception as error:  # noqa: BLE001 (whatever leaves is the finding)
        return f"{type(error).__name__}: {error}"[:MAX_SHOWN] + _origin(error)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return ""


MAX_MESSAGE_CHARS = 8100
"""Of an error that a user reads."""


def _origin(error: Exception) -> str:
    trace = error.__traceback__
    place = ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/opsctl/" in name or "/trainer/" in name or "/watchdogs/" in name:
            place = f" at {Path(name).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
