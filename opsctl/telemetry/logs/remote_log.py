"""A growing file behind a URL, followed by byte ranges from outside the cluster."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPResponse, IncompleteRead
from urllib.request import OpenerDirector

from opsctl.errors import InputError, OpsctlError
from opsctl.ports import Clock
from opsctl.telemetry.logs.log_lines import LineBuffer
from opsctl.web import FAILURES, Address, describe, fetch, open_session, parse_address

ATTEMPTS = 6
CHUNK = 1 << 16
FIRST_WAIT = 0.5
"""Seconds before the second attempt; twice as long before each further one."""
LONGEST_WAIT = 60.0
TIMEOUT = 20.0
OVERLAP = 64
"""So many bytes that we have are asked for again. They tell a log that grew from another one at the same address, which
an ETag cannot: it changes with every line, and If-Range would fetch the whole log each time."""

_RANGE = re.compile(r"bytes (\d+)-\d+/")
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class _TryAgain(Exception):
    """The server, or the way to it, failed in a way that may pass."""

    def __init__(self, why: str, wait: float = 0) -> None:
        super().__init__(why)
        self.wait = min(wait, LONGEST_WAIT)


@dataclass(slots=True)
class RemoteLog:
    """Follows one URL. A dropped connection is resumed where it broke; a log that was replaced is read from its start.

    A server that knows no ranges sends the whole log each time, and what we have is skipped.
    """

    address: Address
    client: OpenerDirector
    clock: Clock
    poll_seconds: float = 5.0
    _begin: int = 0
    """Where we began to read."""
    _offset: int = 0
    _window: int = 0
    """If not 0, the next request asks for so many bytes at the end, wherever that is."""
    _seen: bytes = b""
    """The last bytes before the offset."""
    _etag: str = ""
    """Of an answer that was read to its end."""
    _buffer: LineBuffer = field(default_factory=LineBuffer)

    def tail(self, lines: int | None) -> Iterable[bytes]:
        """The last complete lines, or all; `read` goes on behind them. Raises as `read` does."""
        if lines is None:
            return self.read()
        window = max(1 << 16, lines * 512)
        while True:
            self._restart()
            self._window = window
            datas = deque(self.read(), maxlen=lines + 1)
            # Where we begin in the middle, the first line is a piece of one.
            if self._begin == 0 or len(datas) > lines:
                return list(datas)[-lines:] if lines else []
            window *= 4

    def read(self) -> Iterator[bytes]:
        """The complete lines that are new, without their ends.

        Raises OpsctlError when the server refuses, or does not answer after some attempts. Each piece of progress
        gives as many attempts again. After an error one may go on reading.
        """
        is_complete = False
        while not is_complete:
            is_complete = yield from self._persist()

    def rest(self) -> list[bytes]:
        """A last line that has no end, if there is one. It is given up: what completes it comes as another line."""
        return [rest] if (rest := self._buffer.rest()) else []

    @property
    def what(self) -> str:
        """The address without what may be secret in it."""
        return self.address.shown

    def _persist(self) -> Generator[bytes, None, bool]:
        """One request, as `_request`, with so many attempts."""
        for attempt in range(ATTEMPTS - 1):
            try:
                return (yield from self._request())
            except _TryAgain as error:
                self.clock.sleep(max(error.wait, min(FIRST_WAIT * 2**attempt, LONGEST_WAIT)))
        try:
            return (yield from self._request())
        except _TryAgain as error:
            raise OpsctlError(
                f"{self.what}: no answer after {ATTEMPTS} attempts: {error}",
                hint="is the server up and the address right?",
            ) from error

    def _restart(self) -> None:
        self._begin = self._offset = self._window = 0
        self._seen = b""
        self._etag = ""
        self._buffer.rest()

    def _request(self) -> Generator[bytes, None, bool]:
        """One request: its new lines. Whether all is read; if not, the next request gets further."""
        before = self._offset
        try:
            with fetch(self.client, self.address, timeout=TIMEOUT, headers=self._headers()) as response:
                return (yield from self._receive(response))
        except FAILURES as error:
            if self._offset == before:
                raise _TryAgain(describe(error)) from error
            self.clock.sleep(1)
            return False

    def _headers(self) -> dict[str, str]:
        span = f"-{self._window}" if self._window else f"{self._offset - len(self._seen)}-"
        # A range of something compressed would be of no use.
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        return headers | ({"If-None-Match": self._etag} if self._etag else {})

    def _receive(self, response: HTTPResponse) -> Generator[bytes, None, bool]:
        if response.status == 304:
            return True
        if response.status == 416:
            return self._nothing_there()
        self._check(response)
        if not (yield from self._take(response, self._to_skip(response))):
            self._restart()
            return False
        etag = response.headers.get("ETag", "")
        # A weak one may stay the same while the log grows.
        self._etag = "" if etag.startswith("W/") else etag
        return True

    def _nothing_there(self) -> bool:
        """We always ask for bytes that we have seen, so that the log is empty or shorter than it was."""
        if is_empty := self._offset == 0:
            self._window = 0
        else:
            self._restart()
        return is_empty

    def _check(self, response: HTTPResponse) -> None:
        what = f"{response.status} {response.reason}".strip()
        if response.status in _TRY_AGAIN:
            wait = response.headers.get("Retry-After", "")
            raise _TryAgain(what, float(wait) if wait.isdecimal() else 0)
        if response.status not in (200, 206):
            raise OpsctlError(f"{self.what}: {what}", hint="does `curl -I` find the log at this address?")

    def _to_skip(self, response: HTTPResponse) -> int:
        """How much of the answer lies before what we asked for."""
        sent = 0
        if response.status == 206:
            match = _RANGE.match(response.headers.get("Content-Range", ""))
            if match is None:
                raise OpsctlError(f"{self.what}: sends a part of the log without saying which")
            sent = int(match[1])
        if self._window:
            self._begin = self._offset = sent
            self._window = 0
        skip = self._offset - len(self._seen) - sent
        if skip < 0:
            raise _TryAgain("sent another part of the log than asked for")
        return skip

    def _take(self, response: HTTPResponse, skip: int) -> Generator[bytes, None, bool]:
        """The new lines of an answer. False if it is not a continuation of what we have."""
        known = self._seen
        for data in _received(response):
            skipped, rest = data[:skip], data[skip:]
            skip -= len(skipped)
            again, new = rest[: len(known)], rest[len(known) :]
            if not known.startswith(again):
                return False
            known = known[len(again) :]
            self._offset += len(new)
            self._seen = (self._seen + new)[-OVERLAP:]
            yield from self._buffer.feed(new)
        return not (skip or known)


def connect(url: str, clock: Clock) -> RemoteLog:
    """Nothing is sent yet. Raises InputError for what is no URL."""
    try:
        address = parse_address(url)
    except ValueError:
        raise InputError("--from: needs an address that starts with http:// or https://") from None
    return RemoteLog(address, open_session(), clock)


def _received(response: HTTPResponse) -> Iterator[bytes]:
    """The body as it arrives. Raises IncompleteRead where the connection ends before the body does."""
    while data := response.read1(CHUNK):
        yield data
    if response.length:
        raise IncompleteRead(b"", response.length)
