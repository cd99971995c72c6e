"""`opsctl logs` on a run directory, and on a log that grows while `--follow` reads."""

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

from opsctl.base.errors import OpsctlError
from opsctl.cli.logs import logs
from opsctl.state.events import AttemptStarted
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir, find
from tests.support.cases import read_cases


@dataclass
class FakeClock:
    """A clock whose sleeps run the next change; after the last change comes Ctrl-C."""

    changes: list[Callable[[], object]] = field(default_factory=list)
    passed_s: float = 0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.passed_s)

    def monotonic(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += 10
        if not self.changes:
            raise KeyboardInterrupt
        self.changes.pop(0)()


@dataclass
class FakeApp:
    root: Path
    clock: FakeClock = field(default_factory=FakeClock)

    def find(self, train: str) -> RunDir:
        return find(self.root, train)

    def journal(self, run: RunDir) -> Journal:
        return Journal(run, self.clock)


@pytest.fixture
def app(tmp_path) -> FakeApp:
    return FakeApp(tmp_path)


@pytest.fixture
def run(app) -> RunDir:
    run = RunDir(app.root / "gpt")
    run.create()
    run.config.touch()
    return run


def call(app: FakeApp, *args: str) -> Result:
    return CliRunner(catch_exceptions=False).invoke(logs, args, obj=app)


def lines(app: FakeApp, *args: str) -> list[str]:
    return call(app, *args).stdout_bytes.decode(errors="replace").splitlines()


def append(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def start_attempt(app: FakeApp, run: RunDir, attempt: str, **texts: str) -> None:
    """Start an attempt and write its rank logs: `node1_0` is rank 0 on node1."""
    app.journal(run).append(AttemptStarted(attempt=attempt, nodes="node[1-2]"))
    for key, text in texts.items():
        node, rank = key.split("_")
        append(run.attempt_logs(attempt) / f"{node}-{rank}.log", text)


def test_all_shows_the_whole_log(app, run):
    append(run.main_log, "".join(f"{n}\n" for n in range(1000)))
    assert lines(app, "gpt", "--all") == [str(n) for n in range(1000)]


def test_bytes_are_piped_unchanged(app, run):
    garbage = bytes(range(256)).replace(b"\n", b"") + b"\n"
    append(run.main_log, garbage)
    assert call(app, "gpt").stdout_bytes == garbage


@pytest.mark.parametrize(*read_cases(__file__, "lines_are_shown"))
def test_lines_are_shown(app, run, before, args, expected):
    for name, text in before.get("files", {}).items():
        append(run.logs / name, text)
    for attempt in before.get("attempts", ()):
        start_attempt(app, run, **attempt)
    for words in args:
        assert lines(app, "gpt", *words) == expected


def test_follow_shows_both_logs_until_ctrl_c(app, run):
    append(run.main_log, "old\n")
    app.clock.changes = [
        lambda: append(run.main_log, "new\nhal"),
        lambda: append(run.logs / "pulse.log", "[2026-01-01 10:00:00] PULSE: x\n"),
        lambda: append(run.main_log, "f\n"),
    ]
    result = call(app, "gpt", "-f")
    assert result.stdout.splitlines() == ["old", "new", "[2026-01-01 10:00:00] PULSE: x", "half"]
    assert isinstance(result.exception, SystemExit)


def test_follow_waits_for_a_missing_log(app, run):
    app.clock.changes = [lambda: append(run.main_log, "first\n")]
    assert lines(app, "gpt", "-f") == ["first"]


def test_follow_rank_continues_into_the_next_attempt(app, run):
    start_attempt(app, run, "12_1.0", node1_0="one\n")
    app.clock.changes = [
        lambda: append(run.attempt_logs("12_1.0") / "node1-0.log", "two\nlast words"),
        lambda: start_attempt(app, run, "12_2.0", node9_0="three\n"),
        lambda: append(run.attempt_logs("12_2.0") / "node9-0.log", "four\n"),
    ]
    assert lines(app, "gpt", "--rank", "0", "-f") == ["one", "two", "last words", "three", "four"]


def test_follow_shows_ranks_that_start_later(app, run):
    start_attempt(app, run, "12_1.0", node1_0="one\n")
    app.clock.changes = [lambda: append(run.attempt_logs("12_1.0") / "node1-1.log", "two\n")]
    assert lines(app, "gpt", "--task", "1", "-f") == ["[node1:0]: one", "[node1:1]: two"]


def test_json_prints_objects(app, run):
    append(run.main_log, b"[node1:3]: a \xff\nb\n")
    assert [json.loads(line) for line in lines(app, "gpt", "--json")] == [
        {"node": "node1", "rank": 3, "text": "a \ufffd"},
        {"node": None, "rank": None, "text": "b"},
    ]


def test_json_names_a_single_rank(app, run):
    start_attempt(app, run, "12_1.0", node1_0="a\n")
    assert json.loads(call(app, "gpt", "--rank", "0", "--json").stdout) == {"node": "node1", "rank": 0, "text": "a"}


@pytest.mark.parametrize(*read_cases(__file__, "missing_log_is_reported"))
def test_missing_log_is_reported(app, run, args, message):
    start_attempt(app, run, "12_1.0", node1_0="a\n")
    with pytest.raises(OpsctlError) as caught:
        call(app, "gpt", *args)
    assert caught.value.message == message


@pytest.mark.parametrize(*read_cases(__file__, "invalid_options_are_refused"))
def test_invalid_options_are_refused(app, args, message):
    result = call(app, *args)
    assert (result.exit_code, message in " ".join(result.stderr.split())) == (2, True)


def opsctl(run: RunDir, *args: str, **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "opsctl", "logs", *args],
        env={**os.environ, "OPSCTL_ROOT": str(run.path.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        **options,
    )


def test_following_ends_with_130_on_ctrl_c(run):
    append(run.main_log, "one\n")
    process = opsctl(run, str(run.path), "-f")
    assert process.stdout.readline() == b"one\n"
    append(run.main_log, "two\n")
    assert process.stdout.readline() == b"two\n"
    process.send_signal(signal.SIGINT)
    assert (process.wait(timeout=250), process.communicate()) == (130, (b"", b"\n"))


def test_closed_pipe_ends_quietly(run):
    append(run.main_log, "line\n" * 100_000)
    process = opsctl(run, str(run.path), "--all")
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.wait(timeout=250) in (1, 141)
    assert process.stderr.read() == b""
    process.stderr.close()


def test_log_cannot_control_the_terminal(run):
    append(run.main_log, b"\x1b]0;title\x07\x1b[2Jshown\n")
    reader, terminal = os.openpty()
    process = subprocess.Popen([sys.executable, "-m", "opsctl", "logs", str(run.path)], stdout=terminal)
    assert (process.wait(timeout=250), os.read(reader, 1000)) == (0, b"shown\r\n")
    os.close(reader)
    os.close(terminal)
