"""Programs of this machine: run to their end, or ended, whatever they do."""

import os
import signal
import time

import pytest

from opsctl.errors import MissingProgram
from opsctl.host import system
from opsctl.host.system import SystemRunner
from opsctl.ports import Flooded, TimedOut


@pytest.fixture
def runner():
    return SystemRunner()


def test_a_late_program_holds_nobody_up_though_what_it_left_keeps_its_output_open(runner, tmp_path):
    """As a daemon does that it starts, or a process that hangs in the kernel."""
    script = 'setsid sh -c "echo \\$\\$ >pid; exec sleep 600" & while [ ! -s pid ]; do sleep 0.1; done; sleep 600'
    began = time.monotonic()
    try:
        with pytest.raises(TimedOut, match="sh did not answer within 3 s"):
            runner.run(("sh", "-c", f"cd {tmp_path}; {script}"), timeout=3)
        assert time.monotonic() - began < 200
    finally:
        pid = tmp_path / "pid"
        if pid.exists() and (number := pid.read_text()):  # or it was too late even for a beginning
            os.kill(int(number), signal.SIGKILL)


def test_a_program_that_prints_without_end_is_ended(runner, monkeypatch):
    monkeypatch.setattr(system, "MAX_OUTPUT_BYTES", 4 << 20)
    with pytest.raises(Flooded, match="yes printed more than 4 MiB and was ended"):
        runner.run(("yes",), timeout=250)


def test_what_is_given_comes_back_whatever_its_length(runner):
    text = "ü\n" * 300_000
    assert runner.run(("cat",), timeout=250, stdin=text).out == text


def test_a_program_that_does_not_read_what_it_is_given_is_no_failure(runner):
    done = runner.run(("sh", "-c", "exec <&-; echo out; echo err >&2; exit 3"), timeout=250, stdin="x" * 1_000_000)
    assert (done.code, done.out, done.err) == (3, "out\n", "err\n")


def test_what_is_no_text_is_shown_as_far_as_it_is(runner):
    assert runner.run(("printf", r"a\377b\r\nc"), timeout=250).out == "a\N{REPLACEMENT CHARACTER}b\nc"


def test_a_program_that_is_not_there_is_named(runner):
    with pytest.raises(MissingProgram, match="no-such-program: is not on PATH"):
        runner.run(("no-such-program",), timeout=250)
