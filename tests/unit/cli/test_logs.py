"""`opsctl logs` on a run directory, and on a log that comes while it is followed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opsctl.cli.logs import logs
from opsctl.errors import OpsctlError
from opsctl.state.journal import EventKind, Journal
from opsctl.state.run_dir import RunDir, find


@dataclass
class Clock:
    """Each sleep lets the next thing happen; after the last one comes Ctrl-C."""

    happens: list[Callable[[], object]] = field(default_factory=list)
    passed: float = 0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.passed)

    def monotonic(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += 10
        if not self.happens:
            raise KeyboardInterrupt
        self.happens.pop(0)()


@dataclass
class App:
    root: Path
    clock: Clock = field(default_factory=Clock)

    def find(self, train: str) -> RunDir:
        return find(self.root, train)

    def journal(self, run: RunDir) -> Journal:
        return Journal(run, self.clock)


@pytest.fixture
def app(tmp_path) -> App:
    return App(tmp_path)


@pytest.fixture
def run(app) -> RunDir:
    run = RunDir(app.root / "gpt")
    run.create()
    run.config.touch()
    return run


def call(app: App, *args: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(logs, args, obj=app)


def lines(app: App, *args: str) -> list[str]:
    return call(app, *args).stdout_bytes.decode(errors="replace").splitlines()


def append(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def live(app: App, run: RunDir, attempt: str, **said: str) -> None:
    """An attempt starts, and its ranks say things: `node1_0` is rank 0 on node1."""
    app.journal(run).append(EventKind.ATTEMPT_STARTED, attempt=attempt, nodes="node[1-2]")
    for place, text in said.items():
        node, rank = place.split("_")
        append(run.attempt_logs(attempt) / f"{node}-{rank}.log", text)


def test_the_last_lines_of_the_main_log_are_shown_with_one_that_has_no_end(app, run):
    append(run.main_log, "".join(f"{n}\n" for n in range(100)) + "half")
    assert lines(app, "gpt", "-n", "3") == ["98", "99", "half"]


def test_everything_is_shown_when_asked_for(app, run):
    append(run.main_log, "".join(f"{n}\n" for n in range(1000)))
    assert lines(app, "gpt", "--all") == [str(n) for n in range(1000)]


def test_bytes_pass_into_a_pipe_as_they_are(app, run):
    rubbish = bytes(range(256)).replace(b"\n", b"") + b"\n"
    append(run.main_log, rubbish)
    assert call(app, "gpt").stdout_bytes == rubbish


def test_pulse_lines_stand_where_their_time_is(app, run):
    append(run.main_log, "a\n[2026-01-01 10:00:00] b\nc\n[2026-01-01 12:00:00] d\n")
    append(run.logs / "pulse.log", "[2026-01-01 11:00:00] PULSE: x\n[2026-01-01 13:00:00] PULSE: y\n")
    expected = ["a", "[2026-01-01 10:00:00] b", "c", "[2026-01-01 11:00:00] PULSE: x", "[2026-01-01 12:00:00] d",
                "[2026-01-01 13:00:00] PULSE: y"]  # fmt: skip
    assert lines(app, "gpt") == lines(app, "gpt", "--all") == expected


def test_old_pulse_lines_do_not_take_the_place_of_the_main_logs_last_ones(app, run):
    append(run.main_log, "".join(f"{n}\n" for n in range(100)))
    append(run.logs / "pulse.log", "".join(f"[2026-01-01 10:00:{n}] PULSE: x\n" for n in range(10, 60)))
    assert lines(app, "gpt", "-n", "3") == ["98", "99", "[2026-01-01 10:00:59] PULSE: x"]


def test_following_shows_both_logs_as_they_come_until_ctrl_c(app, run):
    append(run.main_log, "old\n")
    app.clock.happens = [
        lambda: append(run.main_log, "new\nhal"),
        lambda: append(run.logs / "pulse.log", "[2026-01-01 10:00:00] PULSE: x\n"),
        lambda: append(run.main_log, "f\n"),
    ]
    result = call(app, "gpt", "-f")
    assert result.stdout.splitlines() == ["old", "new", "[2026-01-01 10:00:00] PULSE: x", "half"]
    assert isinstance(result.exception, SystemExit)


def test_following_waits_for_a_log_that_is_not_there_yet(app, run):
    app.clock.happens = [lambda: append(run.main_log, "first\n")]
    assert lines(app, "gpt", "-f") == ["first"]


def test_a_rank_is_shown_from_the_newest_attempt_as_it_came(app, run):
    live(app, run, "12_1.0", node1_0="old\n", node1_1="old\n")
    live(app, run, "12_2.0", node1_0="a\n", node2_1="b\nc\n")
    assert lines(app, "gpt", "--rank", "1") == ["b", "c"]


def test_the_newest_attempt_is_the_one_that_the_journal_has_last(app, run):
    live(app, run, "12_5.0", node1_0="five\n")
    live(app, run, "12_3.1", node1_0="three again\n")
    assert lines(app, "gpt", "--rank", "0") == ["three again"]


def test_a_task_is_shown_in_its_newest_attempt_with_who_said_it(app, run):
    live(app, run, "12_1.0", node1_0="first\n")
    live(app, run, "12_1.1", node1_0="again\n", node2_10="ten\n", node2_9="nine\n")
    live(app, run, "12_2.0", node1_0="later\n")
    assert lines(app, "gpt", "--task", "1") == ["[node1:0]: again", "[node2:9]: nine", "[node2:10]: ten"]


def test_a_node_is_shown_with_who_said_it(app, run):
    live(app, run, "12_1.0", **{"node1_0": "a\n", "node-2_1": "b\n"})
    assert lines(app, "gpt", "--node", "node-2") == ["[node-2:1]: b"]


def test_the_last_lines_of_each_rank_are_shown(app, run):
    live(app, run, "12_1.0", node1_0="1\n2\n3\n", node1_1="4\n5\n6")
    assert lines(app, "gpt", "--task", "1", "-n", "2") == [
        "[node1:0]: 2", "[node1:0]: 3", "[node1:1]: 5", "[node1:1]: 6",
    ]  # fmt: skip


def test_following_a_rank_goes_on_into_its_next_attempt_with_the_last_words_of_the_one_before(app, run):
    live(app, run, "12_1.0", node1_0="one\n")
    app.clock.happens = [
        lambda: append(run.attempt_logs("12_1.0") / "node1-0.log", "two\nlast words"),
        lambda: live(app, run, "12_2.0", node9_0="three\n"),
        lambda: append(run.attempt_logs("12_2.0") / "node9-0.log", "four\n"),
    ]
    assert lines(app, "gpt", "--rank", "0", "-f") == ["one", "two", "last words", "three", "four"]


def test_following_shows_ranks_that_come_later(app, run):
    live(app, run, "12_1.0", node1_0="one\n")
    app.clock.happens = [lambda: append(run.attempt_logs("12_1.0") / "node1-1.log", "two\n")]
    assert lines(app, "gpt", "--task", "1", "-f") == ["[node1:0]: one", "[node1:1]: two"]


def test_with_json_each_line_is_an_object(app, run):
    append(run.main_log, b"[node1:3]: a \xff\nb\n")
    assert [json.loads(line) for line in lines(app, "gpt", "--json")] == [
        {"node": "node1", "rank": 3, "text": "a \ufffd"}, {"node": None, "rank": None, "text": "b"},
    ]  # fmt: skip


def test_with_json_a_single_rank_is_named_too(app, run):
    live(app, run, "12_1.0", node1_0="a\n")
    assert json.loads(call(app, "gpt", "--rank", "0", "--json").stdout) == {"node": "node1", "rank": 0, "text": "a"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "the log of gpt: nothing yet"),
        (["--rank", "7"], "rank 7, attempt 12_1.0 of gpt: nothing yet"),
        (["--task", "9", "--node", "n"], "task 9, node n, no attempt of gpt: nothing yet"),
    ],
)
def test_what_is_not_there_is_said(app, run, args, message):
    live(app, run, "12_1.0", node1_0="a\n")
    with pytest.raises(OpsctlError) as caught:
        call(app, "gpt", *args)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Name a TRAIN, or an address with --from, not both."),
        (["gpt", "--from", "http://x"], "Name a TRAIN, or an address with --from, not both."),
        (["--from", "http://x", "--rank", "1"],
         "--task, --rank and --node choose among TRAIN's files; there are none with --from."),
        (["gpt", "--rank", "x"], "Invalid value for '--rank': 'x' is not a valid integer range."),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(app, args, message):
    result = call(app, *args)
    assert (result.exit_code, message in " ".join(result.stderr.split())) == (2, True)


def opsctl(run: RunDir, *args: str, **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "opsctl", "logs", *args], env={**os.environ, "OPSCTL_ROOT": str(run.path.parent)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, **options,
    )  # fmt: skip


def test_following_ends_with_130_on_ctrl_c(run):
    append(run.main_log, "one\n")
    process = opsctl(run, str(run.path), "-f")
    assert process.stdout.readline() == b"one\n"
    append(run.main_log, "two\n")
    assert process.stdout.readline() == b"two\n"
    process.send_signal(signal.SIGINT)
    assert (process.wait(timeout=100), process.communicate()) == (130, (b"", b"\n"))


def test_a_reader_that_has_seen_enough_ends_it_without_a_word(run):
    append(run.main_log, "line\n" * 100_000)
    process = opsctl(run, str(run.path), "--all")
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.wait(timeout=100) in (1, 141)
    assert process.stderr.read() == b""
    process.stderr.close()


def test_on_a_terminal_a_line_does_nothing_but_colour_it(run):
    append(run.main_log, b"\x1b]0;title\x07\x1b[2Jshown\n")
    ours, theirs = os.openpty()
    process = subprocess.Popen([sys.executable, "-m", "opsctl", "logs", str(run.path)], stdout=theirs)
    assert (process.wait(timeout=100), os.read(ours, 1000)) == (0, b"shown\r\n")
    os.close(ours)
    os.close(theirs)
