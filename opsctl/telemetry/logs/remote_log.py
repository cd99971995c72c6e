"""A growing file behind a URL, followed by byte ranges from outside the cluster."""

import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPResponse, IncompleteRead
from urllib.request import OpenerDirector

from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.ports import Clock
from opsctl.base.web import FAILURES, Address, describe, fetch, open_session, parse_address, read_retry_after_s
from opsctl.telemetry.logs.log_lines import LineBuffer

MAX_TRIES = 6
CHUNK_BYTES = 1 << 16
FIRST_WAIT_S = 0.5
"""Wait before the second try. Every further wait is twice as long."""
MAX_WAIT_S = 60.0
TIMEOUT_S = 20.0
OVERLAP_BYTES = 64
"""Every request repeats the last bytes received. They distinguish a log that grew from another log at the same address.
An ETag cannot: an ETag changes with every line, and If-Range would fetch the whole log each time."""

_RANGE = re.compile(r"bytes (\d+)-\d+/")
_RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Retry(Exception):
    """A failure of the server or the network that may pass."""

    def __init__(self, why: str, wait_s: float = 0) -> None:
        super().__init__(why)
        self.wait_s = min(wait_s, MAX_WAIT_S)


@dataclass(slots=True)
class RemoteLog:
    """Follows one URL. A dropped connection is resumed at the same byte; a replaced log is read from its start.

    A server without range requests sends the whole log each time. The bytes received before are skipped.
    """

    address: Address
    client: OpenerDirector
    clock: Clock
    poll_seconds: float = 5.0
    _begin: int = 0
    """Offset of the first byte read."""
    _offset: int = 0
    _window: int = 0
    """If not 0, the next request is for this many bytes at the end of the log."""
    _overlap: bytes = b""
    """The last bytes before the offset."""
    _etag: str = ""
    """ETag of an answer that was read to its end."""
    _buffer: LineBuffer = field(default_factory=LineBuffer)

    def tail(self, lines: int | None) -> Iterable[bytes]:
        """Return the last complete lines, or all with None. `read` continues after them. Raises as `read`."""
        if lines is None:
            return self.read()
        window = max(1 << 16, lines * 512)
        while True:
            self._restart()
            self._window = window
            tail = deque(self.read(), maxlen=lines + 1)
            # After a start in the middle of the log, the first line is incomplete.
            if self._begin == 0 or len(tail) > lines:
                return list(tail)[-lines:] if lines else []
            window *= 4

    def read(self) -> Iterator[bytes]:
        """Yield the new complete lines, without line ends.

        Raises OpsctlError if the server refuses, or does not answer after MAX_TRIES tries. Progress resets the number
        of tries. The caller may read on after an error.
        """
        is_complete = False
        while not is_complete:
            is_complete = yield from self._request_with_retries()

    def rest(self) -> list[bytes]:
        """Return a last line without a line end, if any, and forget it: its remainder will be a line of its own."""
        return [rest] if (rest := self._buffer.rest()) else []

    @property
    def description(self) -> str:
        """The address without its secret parts."""
        return self.address.shown

    def _request_with_retries(self) -> Generator[bytes, None, bool]:
        """Make one request with up to MAX_TRIES tries; return whether the log is read to its end."""
        for number in range(MAX_TRIES - 1):
            try:
                return (yield from self._request())
            except _Retry as error:
                self.clock.sleep(max(error.wait_s, min(FIRST_WAIT_S * 2**number, MAX_WAIT_S)))
        try:
            return (yield from self._request())
        except _Retry as error:
            raise OpsctlError(
                f"{self.description}: no answer after {MAX_TRIES} tries: {error}",
                hint="is the server up and the address right?",
            ) from error

    def _restart(self) -> None:
        self._begin = self._offset = self._window = 0
        self._overlap = b""
        self._etag = ""
        self._buffer.rest()

    def _request(self) -> Generator[bytes, None, bool]:
        """Make one request and yield its new lines; return whether the log is read to its end."""
        before = self._offset
        try:
            with fetch(self.client, self.address, timeout=TIMEOUT_S, headers=self._headers()) as response:
                return (yield from self._receive(response))
        except FAILURES as error:
            if self._offset == before:
                raise _Retry(describe(error)) from error
            self.clock.sleep(1)
            return False

    def _headers(self) -> dict[str, str]:
        span = f"-{self._window}" if self._window else f"{self._offset - len(self._overlap)}-"
        # A byte range of compressed data is useless.
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        return headers | ({"If-None-Match": self._etag} if self._etag else {})

    def _receive(self, response: HTTPResponse) -> Generator[bytes, None, bool]:
        if response.status == 304:
            return True
        if response.status == 416:
            return self._handle_no_range()
        self._check(response)
        if not (yield from self._take(response, self._count_skipped(response))):
            self._restart()
            return False
        etag = response.headers.get("ETag", "")
        # A weak ETag may stay the same while the log grows.
        self._etag = "" if etag.startswith("W/") else etag
        return True

    def _handle_no_range(self) -> bool:
        """Handle status 416: the log is empty, or shorter than before, as every request repeats known bytes."""
        if is_empty := self._offset == 0:
            self._window = 0
        else:
            self._restart()
        return is_empty

    def _check(self, response: HTTPResponse) -> None:
        status = f"{response.status} {response.reason}".strip()
        if response.status in _RETRY_STATUSES:
            raise _Retry(status, read_retry_after_s(response.headers))
        if response.status not in (200, 206):
            raise OpsctlError(f"{self.description}: {status}", hint="check the address with `curl -I`")

    def _count_skipped(self, response: HTTPResponse) -> int:
        """Return how many bytes of the answer lie before the requested range."""
        sent = 0
        if response.status == 206:
            match = _RANGE.match(response.headers.get("Content-Range", ""))
            if match is None:
                raise OpsctlError(f"{self.description}: the answer does not name its byte range")
            sent = int(match[1])
        if self._window:
            self._begin = self._offset = sent
            self._window = 0
        skip = self._offset - len(self._overlap) - sent
        if skip < 0:
            raise _Retry("the server sent a different part of the log")
        return skip

    def _take(self, response: HTTPResponse, skip: int) -> Generator[bytes, None, bool]:
        """Yield the new lines of an answer; return False if the answer does not continue the bytes received before."""
        known = self._overlap
        for data in _receive_body(response):
            skipped, rest = data[:skip], data[skip:]
            skip -= len(skipped)
            again, new = rest[: len(known)], rest[len(known) :]
            if not known.startswith(again):
                return False
            known = known[len(again) :]
            self._offset += len(new)
            self._overlap = (self._overlap + new)[-OVERLAP_BYTES:]
            yield from self._buffer.feed(new)
        return not (skip or known)


def connect(url: str, clock: Clock) -> RemoteLog:
    """Return a RemoteLog, before any request. Raises InputError for a text that is not a URL."""
    try:
        address = parse_address(url)
    except ValueError:
        raise InputError("--from: needs an address that starts with http:// or https://") from None
    return RemoteLog(address, open_session(), clock)


def _receive_body(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the body as it arrives. Raises IncompleteRead if the connection ends before the body."""
    while data := response.read1(CHUNK_BYTES):
        yield data
    if response.length:
        raise IncompleteRead(b"", response.length)
