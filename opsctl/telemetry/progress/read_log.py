"""Read a whole log once, from beginning to end, for its steps, saves and times: of any trainer with known lines."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from opsctl.base.errors import InputError, cannot_read
from opsctl.state.files import open_regular
from opsctl.telemetry.progress.log_reader import LogReader, parse_float, parse_stamp
from opsctl.telemetry.progress.log_summary import LogSummary
from opsctl.telemetry.progress.read_foreign_log import ForeignLogReader, detect_formats, detect_in_text, is_foreign
from opsctl.telemetry.progress.tracker_log import is_tracker_path, read_tracker_log

__all__ = ["parse_float", "parse_stamp", "read_summary"]

DIRECTORY_HINT = "--log takes the log itself, or a directory with TensorBoard files or offline runs of W&B"
CHUNK_BYTES = 4 << 20


def read_summary(
    path: Path, cuts: Sequence[int] | None = None, *, pattern: str = "", follow: bool = False
) -> LogSummary:
    """Read a whole log, or the files of a tracker.

    `cuts` are the offsets at which the attempts began, in rising order. The summary then has one part for the text
    before the first offset, and one part for each offset. Without `cuts`, a new part begins where a trainer loads a
    checkpoint, or where the step goes back. `pattern` is that of TRAIN.toml. A link is read only with `follow`, for a
    log that a person has named.

    Raises RunDirError for a log without read permission, InputError for a path that is not a file.
    """
    try:
        if cuts is None and is_tracker_path(path) and (summary := read_tracker_log(path, follow=follow)).lines:
            return summary
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file", hint=DIRECTORY_HINT)
        reader = _choose_reader(path, cuts, pattern, follow=follow)
        with _open(path, follow=follow) as file:
            offset, rest = 0, b""
            while data := file.read(CHUNK_BYTES):
                rest, offset = reader.feed(rest + data, offset)
            reader.take(rest, offset)
            return reader.finish()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: truncated, or not a gzip file", hint=f"check with: gzip -t {path}") from error
    except OSError as error:
        raise cannot_read(path, error) from error


def _open(path: Path, *, follow: bool) -> IO[bytes]:
    """Open a log as logrotate leaves it: compressed or not."""
    file = os.fdopen(open_regular(path, follow=follow), "rb")
    return gzip.open(file) if path.suffix == ".gz" else file  # type: ignore[return-value]  # it reads alike


def _choose_reader(path: Path, cuts: Sequence[int] | None, pattern: str, *, follow: bool) -> LogReader:
    """Return the reader for the format of a log. The format is detected once."""
    with _open(path, follow=follow) as file:
        if path.suffix == ".gz":
            formats = detect_in_text([file.read(CHUNK_BYTES)], pattern)
        else:
            formats = detect_formats(file.fileno(), pattern)
    return ForeignLogReader(cuts, formats) if is_foreign(formats) else LogReader(cuts)
