"""Text from logs, nodes and users cannot control the terminal; file system errors are not reported as bugs."""

import json
import os
import pty
import subprocess
import sys

import pytest

from opsctl.state.run_dir import RunDir

EVIL = "red \x1b[31mtext\x1b[0m \x1b]0;title\x07\x1b[2J\x1b[6n end"


@pytest.fixture
def train(tmp_path):
    run = RunDir(tmp_path / "gpt")
    run.create()
    run.write(run.config, "")
    return run


def opsctl(train, *words, **more):
    env = {**os.environ, "OPSCTL_ROOT": str(train.path.parent), "XDG_CONFIG_HOME": str(train.path.parent)}
    return subprocess.run([sys.executable, "-m", "opsctl", *words], check=False, env=env, timeout=250, **more)


def test_switch_reason_cannot_control_the_terminal(train):
    (train.switches / "kill").write_text(json.dumps({"why": EVIL}))
    reader, terminal = pty.openpty()
    assert opsctl(train, "kill-switch", "show", "gpt", stdout=terminal).returncode == 0
    text = os.read(reader, 65536).decode()
    os.close(reader)
    os.close(terminal)
    assert "red \x1b[31mtext\x1b[0m  end" in text
    assert not any(literal in text for literal in ("\x1b]", "\x07", "\x1b[2J", "\x1b[6n"))


def test_lone_surrogate_is_escaped_in_json(train):
    (train.switches / "kill").write_text('{"why": "a\\ud800b"}')
    result = opsctl(train, "kill-switch", "show", "gpt", "--json", capture_output=True)
    assert (result.returncode, json.loads(result.stdout)[0]["why"]) == (0, "a\ud800b")


def test_unencodable_character_is_escaped(train):
    (train.switches / "kill").write_text('{"why": "für 日本"}')
    env = {**os.environ, "PYTHONIOENCODING": "latin-1", "OPSCTL_ROOT": str(train.path.parent)}
    words = [sys.executable, "-m", "opsctl", "kill-switch", "show", "gpt"]
    result = subprocess.run(words, check=False, env=env, timeout=250, capture_output=True)
    assert (result.returncode, "für \\u65e5\\u672c" in result.stdout.decode("latin-1")) == (0, True)


def test_unreadable_file_is_one_line_of_error(train):
    result = opsctl(train, "nccl", "/proc/self/mem", capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (1, "opsctl: Input/output error\n")
