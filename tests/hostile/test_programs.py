"""Programs that opsctl starts, and evidence that anybody could have written."""

import subprocess
import tempfile
from pathlib import Path

import pytest

from opsctl.cli.remote_host import _find_socket_directory
from opsctl.guard.end_record import Action
from opsctl.guard.finalize import finalize
from opsctl.guard.node_care import NodeCare
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.publish.git_push import Git
from opsctl.publish.publisher import Secrets
from opsctl.publish.staging import TimeLimit
from opsctl.settings.health import RemoteSettings
from tests.support.cases import read_cases
from tests.support.finalized_trains import QueuedTrain, make_node_care

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture
def care(train: QueuedTrain) -> NodeCare:
    return make_node_care(train)


@pytest.mark.attack("the user's global hooks run at publish")
def test_publish_runs_no_hook(tmp_path, monkeypatch):
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("pre-push", "reference-transaction", "post-commit", "pre-commit", "update", "post-index-change"):
        # In our own repository: hooks of the destination are the destination's.
        ours = f'case "$(git rev-parse --absolute-git-dir)" in */home.git) mkdir -p {tmp_path}/hacked ;; esac'
        (hooks / name).write_text(f"#!/bin/sh\n{ours}\n")
        (hooks / name).chmod(0o755)
    (tmp_path / ".gitconfig").write_text(f"[core]\nhooksPath = {hooks}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    remote = tmp_path / "remote.git"
    subprocess.run(["git", "-c", "core.hooksPath=/dev/null", "init", "--quiet", "--bare", str(remote)], check=True)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "log.txt").write_text("x\n")
    git = Git(
        runner=SystemRunner(), secrets=Secrets(()), deadline=TimeLimit.within(SystemClock(), 60),
        home=tmp_path / "home.git", remote=f"file://{remote}", branch="main", author="me@here",
    )  # fmt: skip
    assert git.push(tmp_path / "files", "tr11", ["log.txt"], [])
    assert not (tmp_path / "hacked").exists()


@pytest.mark.attack("a node name runs a command through Match exec of ssh_config")
@pytest.mark.parametrize("node", ["n1;touch hacked", "$(touch hacked)", "-oProxyCommand=touch hacked", "n1\n", "`id`"])
def test_node_name_reaches_no_shell(tmp_path, monkeypatch, node):
    ssh = pytest.importorskip("opsctl.nodes.remote.ssh", reason="needs the ssh extra").Ssh
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config"
    config.write_text('Match exec "true %h"\n  Port 22\n')
    settings = RemoteSettings(ssh_config=str(config), known_hosts=(str(tmp_path / "known"),), connect_seconds=1)
    answer = ssh.from_settings(settings, SystemClock()).run(node, ["true"], timeout=2)
    assert "is no node name" in answer.problem
    assert not answer.may_have_run
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config"]


@pytest.mark.attack("a damaged known_hosts makes the key of another host a new one")
@pytest.mark.parametrize(
    "damage", ["", "rm $f; mkdir $f", "rm $f; ln -s $f $f", "truncate -s -9 $f", "truncate -s 999 $f"]
)
def test_damaged_known_hosts_accepts_no_key(tmp_path, damage):
    ssh = pytest.importorskip("opsctl.nodes.remote.ssh", reason="needs the ssh extra")
    first, second = (ssh.paramiko.ECDSAKey.generate() for _ in range(2))
    file = tmp_path / "known"
    file.write_text(f"node001 {first.get_name()} {first.get_base64()}")
    subprocess.run(["bash", "-ec", damage], env={"f": str(file), "PATH": "/usr/bin:/bin"}, check=True)
    hosts = ssh.KnownHosts([file], accept_new=True)
    with pytest.raises((ssh.HostKeyChanged, ssh.HostUnknown)):
        hosts.check("node001", second)


@pytest.mark.root
@pytest.mark.attack("a socket of a stranger takes the place of a shared connection of ssh")
@pytest.mark.parametrize(*read_cases(__file__, "sockets"))
def test_socket_lies_where_nobody_else_writes(monkeypatch, request, change):
    directory = tempfile.TemporaryDirectory(prefix="s-")  # short, as the path of a socket must be
    request.addfinalizer(directory.cleanup)
    place = Path(directory.name) / "a" / "run"
    place.mkdir(mode=0o700, parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.setenv("HOME", "/nonexistent")
    assert _find_socket_directory() == place
    subprocess.run(["bash", "-ec", change], env={"run": str(place), "PATH": "/usr/bin:/bin"}, check=True)
    assert _find_socket_directory() is None


@pytest.mark.attack("umask 000 makes a main log that everybody can write")
def test_main_log_is_closed_at_the_start(train):
    train.run.main_log.write_text("x\n")
    train.run.main_log.chmod(0o666)
    train.start_attempt()
    assert train.run.main_log.stat().st_mode & 0o777 == 0o644


@pytest.mark.attack("a log that everybody can write excludes an innocent node")
@pytest.mark.parametrize(("mode", "excluded"), [(0o666, {}), (0o644, {"12": "node001"})])
def test_log_of_everybody_is_no_evidence(train, care, mode, excluded):
    for task in (1, 2):
        attempt = train.start_attempt(f"12_{task}.0")
        logs = train.run.attempt_logs(attempt.name)
        log = logs / "node001-3.log"
        log.write_text(f"Traceback (most recent call last):\n  at train.py:7\n{ECC}\n")
        log.chmod(mode)
        train.end_body(attempt, 1)
        ended = finalize(train.arrays, train.rules, attempt, care=care)
    assert train.queue.excludes == excluded
    assert (ended.action is Action.EXCLUDE_NODES) == bool(excluded)
