"""Programs end by themselves, at the timeout or at the output limit."""

import logging
import os
import signal

import pytest

from opsctl.base.errors import MissingProgram
from opsctl.base.ports import Flooded, TimedOut
from opsctl.host import system
from opsctl.host.system import SystemRunner


@pytest.fixture
def runner():
    return SystemRunner()


def test_timeout_holds_although_a_child_keeps_the_pipe(runner, tmp_path):
    """A daemon that the program started keeps the pipe open, as does a process that hangs in the kernel."""
    script = 'setsid sh -c "echo \\$\\$ >pid; exec sleep 3000" & while [ ! -s pid ]; do sleep 0.1; done; sleep 3000'
    try:
        with pytest.raises(TimedOut, match="sh did not answer within 3 s"):
            runner.run(("sh", "-c", f"cd {tmp_path}; {script}"), timeout=3)
    finally:
        pid = tmp_path / "pid"
        if pid.exists() and (number := pid.read_text()):  # absent if the timeout came before the start
            os.kill(int(number), signal.SIGKILL)


def test_flooding_program_is_ended(runner, monkeypatch):
    monkeypatch.setattr(system, "MAX_OUTPUT_BYTES", 4 << 20)
    with pytest.raises(Flooded, match="yes printed more than 4 MiB and was ended"):
        runner.run(("yes",), timeout=250)


def test_long_input_comes_back(runner):
    text = "ü\n" * 300_000
    assert runner.run(("cat",), timeout=250, stdin=text).out == text


def test_unread_input_is_no_failure(runner):
    done = runner.run(("sh", "-c", "exec <&-; echo out; echo err >&2; exit 3"), timeout=250, stdin="x" * 1_000_000)
    assert (done.code, done.out, done.err) == (3, "out\n", "err\n")


def test_invalid_bytes_are_replaced(runner):
    assert runner.run(("printf", r"a\377b\r\nc"), timeout=250).out == "a\N{REPLACEMENT CHARACTER}b\nc"


def test_missing_program_is_named(runner):
    with pytest.raises(MissingProgram, match="no-such-program: is not on PATH"):
        runner.run(("no-such-program",), timeout=250)


def test_odd_argument_is_logged_in_utf8(runner, caplog):
    caplog.set_level(logging.DEBUG)
    runner.run(("true", "a\udcff"), timeout=250)
    assert "a\\udcff" in caplog.text
    caplog.text.encode()
