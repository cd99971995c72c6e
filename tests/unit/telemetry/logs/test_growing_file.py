"""Growing files on disk, and the fields of their lines. `pytest tests/unit/telemetry/logs`"""

import os
import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.base.errors import RunDirError
from opsctl.telemetry.logs.growing_file import GrowingFile, at_tail, backwards
from opsctl.telemetry.logs.log_lines import MAX_LINE_BYTES, LineBuffer, LogLine, for_terminal, merge, read_line, time_of
from tests.support.cases import read_cases, read_table


def to_bytes(text: str) -> bytes:
    return text.encode("latin-1")


@pytest.fixture
def log(tmp_path) -> Path:
    return tmp_path / "log"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_only_new_lines_are_read(log):
    reader = GrowingFile(log)
    append(log, b"one\n")
    assert list(reader.read()) == [b"one"]
    append(log, b"two\nthree\n")
    assert list(reader.read()) == [b"two", b"three"]
    assert list(reader.read()) == []


def test_unfinished_line_waits_for_its_end(log):
    reader = GrowingFile(log)
    append(log, b"one\ntw")
    assert list(reader.read()) == [b"one"]
    append(log, b"o\n")
    assert list(reader.read()) == [b"two"]


def test_unfinished_line_can_be_taken(log):
    reader = GrowingFile(log)
    append(log, b"one\ntw")
    assert list(reader.read()) == [b"one"]
    assert (reader.rest(), reader.rest()) == ([b"tw"], [])


def test_missing_file_is_waited_for(log):
    reader = GrowingFile(log)
    assert list(reader.read()) == []
    append(log, b"one\n")
    assert list(reader.read()) == [b"one"]


def test_rotated_file_is_followed(log):
    reader = GrowingFile(log)
    append(log, b"one\n")
    assert list(reader.read()) == [b"one"]
    append(log, b"two\nlast words")
    log.rename(log.with_suffix(".1"))
    append(log, b"three\n")
    assert list(reader.read()) == [b"two", b"last words", b"three"]


def test_moved_file_is_read_until_its_successor_exists(log):
    reader = GrowingFile(log)
    append(log, b"one\n")
    assert list(reader.read()) == [b"one"]
    moved = log.rename(log.with_suffix(".1"))
    append(moved, b"two\n")
    assert list(reader.read()) == [b"two"]
    append(log, b"three\n")
    assert list(reader.read()) == [b"three"]


def test_truncated_file_is_read_from_its_start(log):
    reader = GrowingFile(log)
    append(log, b"one\ntwo\nthr")
    assert list(reader.read()) == [b"one", b"two"]
    log.write_bytes(b"new\n")
    assert list(reader.read()) == [b"new"]


def test_later_reader_continues_after_the_last_line(log):
    append(log, b"one\ntw")
    first = GrowingFile(log)
    assert list(first.read()) == [b"one"]
    append(log, b"o\nthree\n")
    assert list(GrowingFile(log, first.position).read()) == [b"two", b"three"]


def test_later_reader_of_another_file_begins_at_its_start(log):
    append(log, b"one\n")
    first = GrowingFile(log)
    list(first.read())
    position = first.position
    log.rename(log.with_suffix(".1"))
    append(log, b"first\nsecond\n")
    assert list(GrowingFile(log, position).read()) == [b"first", b"second"]


def test_binary_content_is_read_unchanged(log):
    append(log, bytes(range(256)) + b"\n\xff\xfe\x00\n")
    before, _, after = bytes(range(256)).partition(b"\n")
    assert list(GrowingFile(log).read()) == [before, after, b"\xff\xfe\x00"]


def test_dump_without_line_ends_does_not_fill_the_memory(log):
    append(log, b"x" * (5 * MAX_LINE_BYTES))
    reader = GrowingFile(log)
    pieces = [*reader.read(), *reader.rest()]
    assert b"".join(pieces) == b"x" * (5 * MAX_LINE_BYTES)
    assert max(map(len, pieces)) <= 2 * MAX_LINE_BYTES


def test_million_lines_are_read(log):
    log.write_bytes(b"".join(b"[node:1]: line %d\n" % n for n in range(1_000_000)))
    began = time.process_time()
    assert sum(1 for _ in GrowingFile(log).read()) == 1_000_000
    assert time.process_time() - began < 5


def test_tail_of_a_huge_file_skips_its_head(log):
    with log.open("wb") as file:
        file.truncate(50 << 30)  # sparse: reading the whole file would take a minute
        file.seek(0, os.SEEK_END)
        file.write(b"\none\ntwo\nthree\n")
    began = time.process_time()
    reader = at_tail(log, 2)
    assert list(reader.read()) == [b"two", b"three"]
    assert time.process_time() - began < 1
    append(log, b"four\n")
    assert list(reader.read()) == [b"four"]


def test_unreadable_file_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunDirError, match="file/log: Not a directory"):
        list(GrowingFile(tmp_path / "file" / "log").read())


TEXTS = st.lists(st.sampled_from([b"", b"a", b"bb", b"\xff\r", b"x" * 70_000]), max_size=12)


@given(lines=TEXTS, wanted=st.integers(0, 14), end=st.sampled_from([b"", b"\n"]))
def test_tail_is_the_end_of_the_whole(tmp_path_factory, lines, wanted, end):
    log = tmp_path_factory.mktemp("tail") / "log"
    log.write_bytes(b"\n".join(lines) + end)
    whole = GrowingFile(log)
    everything = [*whole.read(), *whole.rest()]
    tail = at_tail(log, wanted)
    assert [*tail.read(), *tail.rest()] == everything[len(everything) - min(wanted, len(everything)) :]


@given(lines=TEXTS, end=st.sampled_from([b"", b"\n"]))
def test_backwards_is_the_reverse_with_offsets(tmp_path_factory, lines, end):
    log = tmp_path_factory.mktemp("back") / "log"
    log.write_bytes(b"\n".join(lines) + end)
    data, reader = log.read_bytes(), GrowingFile(log)
    pairs = list(backwards(log))
    assert [line for _, line in pairs][::-1] == [*reader.read(), *reader.rest()]
    assert all(data[at:].startswith(line) and (at == 0 or data[at - 1 : at] == b"\n") for at, line in pairs)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
def test_position_of_a_cut_does_not_matter(data, cuts):
    buffer, lines = LineBuffer(), []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in pairwise(edges):
        lines += buffer.feed(data[begin:end])
    assert b"\n".join([*lines, buffer.rest()]) == data


def test_prefix_names_node_and_rank():
    assert read_line(b"[node-1.x:12]: a: b") == LogLine(node="node-1.x", rank=12, text=b"a: b")


@pytest.mark.parametrize("line", [b"", b"[default7]: x", b"[2021-01-02 10:20:30] PULSE: x", b"x [a:1]: y", b"[a:b]: x"])
def test_line_without_a_prefix_is_text(line):
    assert read_line(line) == LogLine(node=None, rank=None, text=line)


def test_times_are_recognized_in_all_forms():
    assert time_of(b"[2021-01-02 10:20:30] PULSE: x") == b"2021-01-02 10:20:30"
    assert time_of(b"[node:1]: saved, datetime: 2021-01-02T10:20:30+00:00") == b"2021-01-02 10:20:30"
    assert time_of(b"[node:1]: iteration 3/ 4 |") is None


def test_pulse_lines_precede_later_main_lines():
    main = [b"a", b"10:00 2021-01-01 10:00:00", b"b", b"12:00 2021-01-01 12:00:00", b"c"]
    pulse = [b"[2021-01-01 %d:00:00] PULSE: x" % hour for hour in (11, 12, 13)]
    assert list(merge(main, pulse)) == [main[0], main[1], main[2], pulse[0], main[3], main[4], pulse[1], pulse[2]]


def test_pulse_lines_come_last_without_times():
    assert list(merge([b"a", b"b"], [b"[2021-01-01 10:00:00] PULSE: x"]))[2:] == [b"[2021-01-01 10:00:00] PULSE: x"]


@pytest.mark.parametrize(*read_cases(__file__, "line_cannot_control_the_terminal", line=to_bytes))
def test_line_cannot_control_the_terminal(line, shown):
    assert for_terminal(line) == shown


@given(st.lists(st.sampled_from(read_table(__file__, "escapes"))).map("".join).map(to_bytes))
def test_escape_mixtures_are_removed(line):
    shown = re.sub(r"\x1b\[[0-?]*m", "", for_terminal(line))
    assert re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", shown) is None
