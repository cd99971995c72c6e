"""`opsctl --host`, through the system's ssh and a real sshd on loopback."""

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.base.errors import InputError
from opsctl.cli import cli
from opsctl.cli.remote_host import command_text, ssh_options
from tests.support.sshds import Sshd, sshd

ROOT = Path(__file__).parents[3]
HOSTILE = ["$(touch pwned)", "`id`", "a b", "'", '"', "*", "~", "\\", "ü\n2", "--", "-n", "", "!!", "%C", ";", "#"]
FAKE = """\
#!/bin/sh
test -t 1 && echo terminal
[ "$1" = fail ] && exit 7
[ "$NO_COLOR" ] && echo "no colour"
exec {python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@"
"""
REAL = '#!/bin/sh\ncd {root} && OPSCTL_SITE={site} exec {python} -P -m opsctl "$@"\n'


@dataclass
class Remote:
    """A host `login1` whose sshd runs scripts as `opsctl`."""

    place: Path
    env: dict[str, str]

    def opsctl(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-m", "opsctl", *words]
        return subprocess.run(
            argv, capture_output=True, text=True, env={**self.env, **env}, timeout=250, check=False, cwd=ROOT
        )


def write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    ssh = shutil.which("ssh")
    if ssh is None:
        pytest.skip("no ssh here: apt-get install openssh-client")
    with tempfile.TemporaryDirectory(prefix="opsctl-r-") as name:
        place = Path(name)
        for folder in ("there", "here", "run"):
            (place / folder).mkdir(mode=0o700)
        trains = place / "trains"
        for train in ("tr11", "tr12", "other"):
            (trains / train).mkdir(parents=True)
            (trains / train / "train.toml").touch()
        site = place / "site.toml"
        site.write_text(f'root = "{trains}"\ntrust_parents = true\n')
        write_script(place / "there" / "opsctl", FAKE.format(python=sys.executable))
        write_script(place / "real", REAL.format(root=ROOT, python=sys.executable, site=site))
        with sshd(place, ["login1", "stranger"], path=f"{place}/there:/usr/bin:/bin") as daemon:
            known = f"-o UserKnownHostsFile={daemon.known_hosts} -o GlobalKnownHostsFile=/dev/null"
            write_script(place / "here" / "ssh", f'#!/bin/sh\nexec {ssh} -F {daemon.config} {known} "$@"\n')
            _forget(daemon, "stranger")
            names = {"PATH": f"{place}/here:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(place / "run")}
            yield Remote(place, {**os.environ, **names, "NO_COLOR": ""})
            for socket in (place / "run").iterdir():
                close = [ssh, "-F", str(daemon.config), "-o", f"ControlPath={socket}", "-O", "exit", "login1"]
                subprocess.run(close, capture_output=True, timeout=250, check=False)


def _forget(daemon: Sshd, node: str) -> None:
    lines = daemon.known_hosts.read_text().splitlines(keepends=True)
    daemon.known_hosts.write_text("".join(line for line in lines if f":{daemon.ports[node]} " not in line))


def test_words_arrive_unchanged(remote: Remote) -> None:
    done = remote.opsctl("-v", "--site", "a b.toml", "--host", "login1", "exec", *HOSTILE)
    assert json.loads(done.stdout) == ["--site=a b.toml", "--verbose", "exec", *HOSTILE]
    assert not (remote.place / "pwned").exists()


def test_exit_code_is_passed_on_and_connection_shared(remote: Remote) -> None:
    assert remote.opsctl("--host", "login1", "fail").returncode == 7
    [socket] = (remote.place / "run").iterdir()
    assert socket.is_socket()
    assert socket.name.startswith("opsctl-")


def test_missing_program_is_explained(remote: Remote) -> None:
    done = remote.opsctl("--host", "login1", "--host-command", "/no/opsctl", "status")
    assert done.returncode == 1
    assert "login1: '/no/opsctl' does not start there (exit 127)" in done.stderr
    assert "OPSCTL_HOST_COMMAND" in done.stderr


def test_unknown_host_key_is_refused(remote: Remote) -> None:
    done = remote.opsctl("--host", "stranger", "status")
    assert done.returncode == 75
    assert "Host key verification failed" in done.stderr
    assert "stranger: ssh could not run the command" in done.stderr


def test_terminal_here_makes_a_terminal_there(remote: Remote) -> None:
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-P", "-m", "opsctl", "--host", "login1", "status"]
    env = {**remote.env, "NO_COLOR": "1"}
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=ROOT) as process:
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # of the end of the terminal
            while chunk := os.read(ours, 1000):
                text += chunk
        assert process.wait(250) == 0
    os.close(ours)
    assert text.decode().split() == ["terminal", "no", "colour", '["status"]']


def test_trains_of_the_host_are_completed(remote: Remote) -> None:
    words = "opsctl --host login1 status tr"
    env = {"_OPSCTL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "4"}
    done = remote.opsctl(**env, OPSCTL_HOST_COMMAND=str(remote.place / "real"))
    assert done.stdout.split() == ["plain,tr11", "plain,tr12"]
    env = {"_OPSCTL_COMPLETE": "bash_complete", "COMP_WORDS": words.replace("login1", "stranger"), "COMP_CWORD": "4"}
    assert remote.opsctl(**env).stdout.split() == []


def test_real_command_runs_on_the_host(remote: Remote) -> None:
    done = remote.opsctl("--host", "login1", "alerts", "list", "--json", OPSCTL_HOST_COMMAND=str(remote.place / "real"))
    assert json.loads(done.stdout)["open"] == []


def test_shared_connections_of_the_user_are_left_alone(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, remote.env[name])
    assert "ControlMaster=auto" in ssh_options("login1")
    script = remote.place / "here" / "ssh"
    text = script.read_text()
    write_script(script, text.replace('"$@"', '-o ControlPath=/tmp/mine-%C "$@"'))
    assert not any("Control" in word for word in ssh_options("login1"))
    write_script(script, text)


@pytest.mark.parametrize("host", ["-oProxyCommand=touch pwned", " ", ""])
def test_host_never_becomes_an_option_or_this_host(host: str) -> None:
    result = CliRunner().invoke(cli, ["--host", host, "version"], standalone_mode=False)
    assert isinstance(result.exception, InputError)
    assert "is not the name of a host" in result.exception.message
    assert result.stdout == ""


def test_program_is_shell_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert command_text("~/venv/bin/opsctl", ["status", "a b"]) == "~/venv/bin/opsctl status 'a b'"
