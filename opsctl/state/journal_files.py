"""The files of a journal, each line of which is read once, and the snapshot that stands for old attempts.

The files themselves only grow. The snapshot holds the events that still matter and how far each file has been taken
into account; readers start there. It is made by the train's owner, as only the owner can write to the journal, and a
reader goes back to the files if one of them is not the file that the snapshot speaks of.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from opsctl.base.errors import RunDirError, cannot_read
from opsctl.state.events import Event, parse_event, to_line
from opsctl.state.files import list_names, open_regular, parse_json, read_json, read_range
from opsctl.state.records import HEADER

SNAPSHOT = "snapshot.json"
MAX_SNAPSHOT_BYTES = 64 << 20
MAX_UNREAD_BYTES = 64 << 20
"""Read of one file beyond the snapshot, which is made every few dozen attempts. A bound against other users' trains."""
MAX_UNREAD_EVENTS = 200_000
MAX_HISTORY_BYTES = 512 << 20
"""Read of one file for the whole history: three months of a run of 16,384 GPUs write 30 MiB."""
MAX_LINE_BYTES = 1 << 20
TAIL_BYTES = 64 << 10
MAX_FILES = 10_000
"""One for each host and user."""
MAX_DAMAGES = 100
"""Lines without an event that are named."""
NUMBER = re.compile(rb'^{"n": (\d{1,15}),', re.MULTILINE)
"""Begin of an event's line, as `to_line` writes it."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of the journal up to an offset in bytes."""

    inode: int
    end: int


@dataclass(slots=True)
class JournalFiles:
    """What one process has read of a journal. Every method raises RunDirError for what it cannot read."""

    directory: Path
    parts: dict[str, FilePart] = field(default_factory=dict)
    """What was read, by file."""
    events: list[Event] = field(default_factory=list)
    """What was read, in order."""
    snapshot: tuple[int, int] | None = None
    """Inode and time of change of the snapshot that was read."""
    damages: list[str] = field(default_factory=list)
    """The lines without an event, each by its file and place."""
    unfinished: dict[Path, float] = field(default_factory=dict)
    """Files whose last line has no end, being written or cut off, and when they changed last."""

    def find_last_number(self) -> int:
        """Return the highest number at the ends of the files, without reading what is before."""
        return max((_find_last_number(path) for path in self._list().values()), default=0)

    def refresh(self) -> None:
        """Read what was appended since the last call; everything if a file is another one, or a snapshot is new."""
        paths, snapshot = self._list(), _identify(self.directory / SNAPSHOT)
        if snapshot != self.snapshot or not _fit(self.parts, paths):
            self.parts, self.events, self.snapshot, self.damages = {}, [], snapshot, []
            with suppress(OSError, ValueError, KeyError, TypeError):  # a snapshot only saves time
                parts, events, damages = _load_snapshot(self.directory / SNAPSHOT)
                if _fit(parts, paths):
                    self.parts, self.events, self.damages = parts, events, damages
        known = len(self.events)
        for name, path in paths.items():
            events, self.parts[name] = self._read(path, self.parts.get(name), MAX_UNREAD_BYTES)
            self.events += events
            if len(self.events) > known + MAX_UNREAD_EVENTS:
                self.parts, self.events = {}, []
                raise RunDirError(f"{self.directory}: more than {MAX_UNREAD_EVENTS} new events")
        if len(self.events) > known:
            self.events = sort_events(self.events)

    def read_all(self) -> list[Event]:
        """Return the events of the whole history, in order."""
        self.damages = []
        files = (self._read(path, None, MAX_HISTORY_BYTES)[0] for path in self._list().values())
        return sort_events(list(chain.from_iterable(files)))

    def format_snapshot(self, events: Sequence[Event]) -> str:
        """Return a snapshot that has `events` in place of what was read."""
        parts = {name: [part.inode, part.end] for name, part in self.parts.items()}
        content = {**HEADER, "files": parts, "damages": self.damages}
        return json.dumps({**content, "events": [json.loads(to_line(event)) for event in events]}) + "\n"

    def _read(self, path: Path, known: FilePart | None, max_bytes: int) -> tuple[list[Event], FilePart]:
        """Return the events of a file behind what is known of it, and how far it is known now."""
        events: list[Event] = []
        end = known.end if known else 0
        self.unfinished.pop(path, None)
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size - end > max_bytes:
                    raise RunDirError(f"{path}: larger than {max_bytes >> 20} MiB, which no train's journal is")
                file.seek(end)
                while line := file.readline(MAX_LINE_BYTES):
                    if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                        self.unfinished[path] = status.st_mtime
                        break
                    try:
                        events.append(parse_event(parse_json(line)))
                    except ValueError as error:
                        if line.strip() and len(self.damages) < MAX_DAMAGES:
                            self.damages.append(f"{path}: no event at byte {end}: {error!s:.100}")
                    end += len(line)
        except OSError as error:
            raise cannot_read(path, error) from error
        return events, FilePart(status.st_ino, end)

    def _list(self) -> dict[str, Path]:
        try:
            names = list_names(self.directory, max_entries=MAX_FILES)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise cannot_read(self.directory, error) from error
        return {name: self.directory / name for name in sorted(names) if name.endswith(".jsonl")}


def sort_events(events: Sequence[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event.number, event.at))


def _load_snapshot(path: Path) -> tuple[dict[str, FilePart], list[Event], list[str]]:
    """Raises OSError, and ValueError, KeyError or TypeError for anything else than a snapshot."""
    record = read_json(path, MAX_SNAPSHOT_BYTES)
    parts = {str(name): FilePart(int(inode), int(end)) for name, (inode, end) in record["files"].items()}
    return parts, [parse_event(event) for event in record["events"]], list(map(str, record.get("damages", ())))


def _identify(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _fit(parts: Mapping[str, FilePart], paths: Mapping[str, Path]) -> bool:
    """Whether the files have only grown since they were read."""
    for name, part in parts.items():
        try:
            status = paths[name].lstat()
        except (KeyError, OSError):
            return False
        if status.st_ino != part.inode or status.st_size < part.end:
            return False
    return True


def _find_last_number(path: Path) -> int:
    """Return the highest number of the last lines. Lines of processes on one host may be a little out of order."""
    try:
        tail, size = read_range(path, -TAIL_BYTES, TAIL_BYTES)
        numbers = NUMBER.findall(tail)
        if not numbers and size > TAIL_BYTES:
            numbers = NUMBER.findall(read_range(path, -2 * MAX_LINE_BYTES, 2 * MAX_LINE_BYTES)[0])
    except OSError as error:
        raise cannot_read(path, error) from error
    return max(map(int, numbers), default=0)
