"""Output to programs, pipes and terminals, which text of logs, nodes and users cannot control."""

import json
import math
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.table import Table

from opsctl.cli.output import console, print_json
from opsctl.state.run_dir import RunDir


@click.command()
def shown() -> None:
    table = Table(box=None, pad_edge=False)
    table.add_row("a", "short")
    table.add_row("b", "long " * 40 + "end")
    console().print(table)


def test_lines_in_a_pipe_are_not_wrapped():
    _, first, second = CliRunner().invoke(shown).stdout.splitlines()
    assert first == "a  short"
    assert second.endswith("long end")


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"])
def test_pipe_is_no_terminal_whatever_the_environment_says(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("COLUMNS", "40")
    _, first, second = CliRunner().invoke(shown, color=True).stdout.splitlines()
    assert (first, "\x1b" in second, second[-8:]) == ("a  short", False, "long end")
    assert not console().is_terminal


def test_json_writes_null_for_nan_and_infinity(capsys):
    print_json({"task_h": math.inf, "loss": [math.nan, 2.5]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"task_h": None, "loss": [None, 2.5]}


def test_times_are_iso_8601(capsys):
    print_json({"at": datetime(2026, 3, 1, 12, 30, tzinfo=UTC), "where": Path("/x")})
    assert json.loads(capsys.readouterr().out) == {"at": "2026-03-01T12:30:00+00:00", "where": "/x"}


@pytest.mark.parametrize(("env", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_no_color_is_honoured_on_a_terminal(tmp_path, env, is_coloured):
    (tmp_path / "site.toml").write_text(f'root = "{tmp_path}/trains"\n')
    reader, terminal = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-m", "opsctl", "--site", str(tmp_path / "site.toml"), "watch", "fs_quota", "--dry-run"],
        env={**plain, **env, "TERM": "xterm"},
        stdout=terminal,
        stderr=terminal,
        timeout=250,
        check=False,
    )
    os.close(terminal)
    assert (b"\x1b[" in os.read(reader, 65536)) is is_coloured


def test_narrow_terminal_cuts_nothing_off(tmp_path):
    (tmp_path / "site.toml").write_text(f'root = "{tmp_path}/trains"\nengine = "sandbox"\nsandbox = "none-such"\n')
    reader, terminal = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "opsctl", "--site", str(tmp_path / "site.toml"), "doctor"],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "50"},
        stdout=terminal,
        timeout=250,
        check=False,
    )
    os.close(terminal)
    text = os.read(reader, 65536).decode()
    assert "sandbox" in text
    assert "…" not in text


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
    result = opsctl(train, "stacks", "--from", "/proc/self/mem", capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (1, "opsctl: Input/output error\n")
