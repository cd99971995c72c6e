"""Rows of figures from the binary files of TensorBoard and of W&B's offline runs. Pure: bytes in, rows out.

Formats: TensorFlow's TFRecord with event.proto and summary.proto; W&B's leveldb log with wandb_internal.proto.
Checksums are not verified: a file that is still written to ends within a record.
"""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

MAX_RECORD_BYTES = 64 << 20
MAX_NAME_BYTES = 1000
"""Of the tag of a figure."""
MAX_EMPTY_RECORDS = 1 << 16
"""After so many empty records in a row, the rest of a file is a hole, as in a sparse file."""
BLOCK_BYTES = 32768
"""leveldb's log is cut into blocks; no record header crosses their ends."""
WANDB_MARK = b":W&B"
WANDB_HEADER_BYTES = 7
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
FLOAT_TYPE = 1
"""TensorProto.dtype of 32-bit floats."""


@dataclass(slots=True, kw_only=True)
class MetricRow:
    """Figures of one moment, by the names that the trainer gave them."""

    time: float = math.nan
    """Seconds since the epoch."""
    step: int | None = None
    """The tracker's own counter, which may count calls instead of steps."""
    values: dict[str, float] = field(default_factory=dict)


def read_events(file: IO[bytes]) -> Iterator[MetricRow]:
    """Yield a row for every scalar of a TensorBoard file."""
    empty = 0
    while len(head := file.read(12)) == 12:
        length = int.from_bytes(head[:8], "little")
        empty = 0 if length else empty + 1
        if length > MAX_RECORD_BYTES or empty > MAX_EMPTY_RECORDS:
            return
        data = file.read(length)
        if len(data) < length or len(file.read(4)) < 4:
            return
        yield from _read_event(data)


def _read_event(data: bytes) -> Iterator[MetricRow]:
    """Yield the scalars of an event: its time and step stand before its summary."""
    time, step = math.nan, 0
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes) and len(value) == 8:
            time = struct.unpack("<d", value)[0]
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            scalars = (_read_scalar(item) for part, item in _fields(value) if part == 1 and isinstance(item, bytes))
            for name, figure in scalars:
                if name and figure is not None:
                    yield MetricRow(time=time, step=step, values={name: figure})


def _read_scalar(data: bytes) -> tuple[str, float | None]:
    """Return tag and value of a Summary.Value: `simple_value`, or a tensor of one float."""
    name, figure = "", None
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes) and len(value) <= MAX_NAME_BYTES:
            name = value.decode(errors="replace")
        elif number == 2 and isinstance(value, bytes) and len(value) == 4:
            figure = struct.unpack("<f", value)[0]
        elif number == 8 and isinstance(value, bytes):
            figure = _read_tensor(value)
    return name, figure


def _read_tensor(data: bytes) -> float | None:
    kind, content = 0, b""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5) and isinstance(value, bytes):  # tensor_content, or float_val
            content = value
    return struct.unpack("<f", content)[0] if kind == FLOAT_TYPE and len(content) == 4 else None


def read_wandb(file: IO[bytes]) -> Iterator[MetricRow]:
    """Yield a row for every call of `wandb.log` in a `run-ID.wandb` file."""
    if file.read(WANDB_HEADER_BYTES)[:4] != WANDB_MARK:
        return
    for record in _read_leveldb(file, WANDB_HEADER_BYTES):
        for number, value in _fields(record):
            if number == 2 and isinstance(value, bytes):  # Record.history
                yield to_row(_read_history(value))


def _read_leveldb(file: IO[bytes], offset: int) -> Iterator[bytes]:
    """Yield the whole records of a leveldb log: full, or first, middle and last."""
    parts: list[bytes] = []
    size_bytes, empty = 0, 0
    while True:
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < 7:
            file.read(left)
            offset += left  # at the end of the file as well, so that the next read ends the loop
            continue
        head = file.read(7)
        if len(head) < 7:
            return
        length, kind = int.from_bytes(head[4:6], "little"), head[6]
        data = file.read(length)
        offset += 7 + length
        empty = 0 if length else empty + 1
        if kind in (1, 2):
            parts, size_bytes = [], 0
        size_bytes += length
        if len(data) < length or size_bytes > MAX_RECORD_BYTES or empty > MAX_EMPTY_RECORDS:
            return
        parts += [data] if data else []
        if kind in (1, 4):
            yield b"".join(parts)
            parts, size_bytes = [], 0


def _read_history(data: bytes) -> dict[str, object]:
    """Return the items of a HistoryRecord; nested names are joined by dots."""
    values: dict[str, object] = {}
    for number, item in _fields(data):
        if number != 1 or not isinstance(item, bytes):
            continue
        names, text = [], b""
        for part, value in _fields(item):
            if part in (1, 2) and isinstance(value, bytes):
                names.append(value.decode(errors="replace"))
            elif part == 16 and isinstance(value, bytes):
                text = value
        try:
            values[".".join(names)] = json.loads(text)
        except (ValueError, RecursionError):
            continue
    return values


def to_row(values: dict[str, object]) -> MetricRow:
    """Return a row of W&B: `_timestamp`, `_step` and figures."""
    row = MetricRow()
    for name, value in values.items():
        if isinstance(value, dict):
            row.values.update({f"{name}.{key}": float(item) for key, item in value.items() if _is_number(item)})
        elif _is_number(value):
            number = float(value)  # type: ignore[arg-type]  # _is_number
            if name in ("_timestamp", "timestamp"):
                row.time = number / 1000 if number > 1e11 else number
            elif name == "_step" and math.isfinite(number):
                row.step = int(number)
            else:
                row.values[name] = number
    return row


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of every field of a protobuf message, up to the first that is broken."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind, value = key & 7, b""
        if kind == VARINT:
            number, at = _read_varint(data, at)
            if at > len(data):
                return
            yield key >> 3, number
            continue
        if kind == LENGTH:
            length, at = _read_varint(data, at)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            length = 8 if kind == EIGHT_BYTES else 4
        else:
            return
        value = data[at : at + length]
        at += length
        if at > len(data):
            return
        yield key >> 3, value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the place after it; beyond the end if the number is cut off."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
    return 0, len(data) + 1
