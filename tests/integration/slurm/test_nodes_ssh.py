"""Commands by ssh to a real sshd: success, and every way of failing."""

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.base.model import Node
from opsctl.base.ports import Answer
from opsctl.host.system import SystemClock
from opsctl.nodes.drain_plan import plan_drain
from opsctl.nodes.health.node_checker import NodeChecker
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.remote.fanout import Fanout, group_answers
from opsctl.nodes.remote.ssh import HostKeyChanged, HostUnknown, KnownHosts, Ssh, parse
from opsctl.settings.health import HealthSettings, RemoteSettings
from opsctl.state.site_dir import SiteDir
from tests.support.gpu_nodes import render_smi
from tests.support.sshds import Sshd, sshd

NODES = [f"node{number:03}" for number in range(1, 17)]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd"), NODES) as made:
        yield made


def shell(daemon: Sshd, **changes: Any) -> Ssh:
    return Ssh.from_settings(RemoteSettings(**{**daemon.settings, **changes}), SystemClock())


def run(daemon: Sshd, *argv: str, stdin: str = "", timeout: float = 100, **changes: Any) -> Answer:
    return shell(daemon, **changes).run("node001", argv, timeout=timeout, stdin=stdin)


def test_command_runs_on_the_named_node(daemon: Sshd) -> None:
    answer = run(daemon, "sh", "-c", 'echo "$SLURMD_NODENAME: $1"; echo oops >&2; exit 3', "sh", "a 'b' $c\n;d")
    assert answer == Answer(node="node001", by="ssh", code=3, out="node001: a 'b' $c\n;d\n", err="oops\n")


def test_stdin_arrives_complete(daemon: Sshd) -> None:
    text = "é漢字 line\n" * 100_000
    assert run(daemon, "cat", stdin=text).out == text


def test_sixteen_nodes_answer_together(daemon: Sshd) -> None:
    answers = Fanout(shells=[shell(daemon)], parallel=16).run(NODES, ("printenv", "SLURMD_NODENAME"), timeout=250)
    assert {node: answer.out.strip() for node, answer in answers.items()} == {node: node for node in NODES}


def test_equal_answers_are_grouped_and_failures_come_first(daemon: Sshd) -> None:
    command = ("sh", "-c", 'case $SLURMD_NODENAME in node003|node007) exit 1;; esac; echo "well"')
    answers = Fanout(shells=[shell(daemon)], parallel=8).run(NODES, command, timeout=250)
    groups = group_answers(answers.values())
    assert [(group.folded, group.answer.code, group.answer.out) for group in groups] == [
        ("node[003,007]", 1, ""),
        ("node[001-002,004-006,008-016]", 0, "well\n"),
    ]


class LeapingClock(SystemClock):
    """A clock that leaps by an hour as soon as a file exists."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def monotonic(self) -> float:
        return super().monotonic() + 3600 * self.file.exists()


def test_command_that_times_out_may_have_run(daemon: Sshd, tmp_path: Path) -> None:
    far, clock = tmp_path / "so-far", LeapingClock(tmp_path / "so-far")
    command = ("sh", "-c", 'echo begun; sleep 1; touch "$0"; sleep 60', str(far))
    answer = Ssh.from_settings(RemoteSettings(**daemon.settings), clock).run("node001", command, timeout=500)
    assert (answer.code, answer.problem, answer.may_have_run) == (None, "ssh: the command did not end in time", True)
    assert answer.out == "begun\n"


def test_node_that_dies_during_a_command_has_not_answered(daemon: Sshd) -> None:
    # The parent of the command's shell is the sshd of this connection.
    answer = run(daemon, "sh", "-c", "echo half; kill -9 $PPID; sleep 5")
    assert answer.code is None
    assert answer.may_have_run
    assert answer.problem != "ssh: the command did not end in time"


def test_closed_port_means_nothing_has_run(daemon: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host node001\n HostName 127.0.0.1\n Port 1\n")
    answer = run(daemon, "true", ssh_config=str(config))
    assert (answer.code, answer.may_have_run) == (None, False)
    assert answer.problem.endswith(": connection refused")


def test_silent_host_is_abandoned(daemon: Sshd, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = tmp_path / "config"
        config.write_text(f"Host node001\n HostName 127.0.0.1\n Port {silent.getsockname()[1]}\n")
        answer = run(daemon, "true", ssh_config=str(config), connect_seconds=0.5)
    assert (answer.code, answer.may_have_run) == (None, False)


def test_refused_login_means_nothing_has_run(daemon: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(daemon.config.read_text().replace("/user\n", "/other\n"))
    answer = run(daemon, "true", ssh_config=str(config))
    assert answer.problem.startswith(f"ssh as {daemon.user}: login refused: ")
    assert not answer.may_have_run


def test_unknown_host_is_refused_without_accept_new(daemon: Sshd, tmp_path: Path) -> None:
    mine = tmp_path / "new" / "known_hosts"
    answer = run(daemon, "true", known_hosts=(str(mine),))
    assert answer.problem == f"ssh as {daemon.user}: the host key is in no known_hosts file"
    assert not mine.exists()
    assert run(daemon, "true", known_hosts=(str(mine),), accept_new=True).code == 0
    assert mine.read_text().startswith(f"[127.0.0.1]:{daemon.ports['node001']} ssh-ed25519 ")
    assert run(daemon, "true", known_hosts=(str(mine),)).code == 0


@pytest.mark.parametrize("accept_new", [False, True])
def test_changed_host_key_is_always_refused(daemon: Sshd, tmp_path: Path, accept_new: bool) -> None:
    other = " ".join((daemon.place / "other.pub").read_text().split()[:2])
    mine = tmp_path / "known_hosts"
    mine.write_text(f"[127.0.0.1]:{daemon.ports['node001']} {other}\n")
    answer = run(daemon, "true", known_hosts=(str(mine),), accept_new=accept_new)
    assert answer.problem.startswith(f"ssh as {daemon.user}: the host key differs from known_hosts: SHA256:")
    assert not answer.may_have_run


def test_jump_host_leads_to_the_node(daemon: Sshd) -> None:
    assert run(daemon, "printenv", "SLURMD_NODENAME", jump="node009").out == "node001\n"
    answer = run(daemon, "true", jump="nowhere.invalid")
    assert (answer.code, answer.may_have_run) == (None, False)


def test_known_hosts_knows_patterns_hashes_and_revocations(daemon: Sshd, tmp_path: Path) -> None:
    keys = {
        name: " ".join((daemon.place / f"{name}.pub").read_text().split()[:2]) for name in ("host", "user", "other")
    }
    file = tmp_path / "known_hosts"
    file.write_text(
        f"# a comment\nr*i?n*,!r9* {keys['host']}\nplain {keys['user']}\n@revoked plain {keys['other']}\n"
        f"@cert-authority * {keys['other']}\nbroken ssh-ed25519 AAAA\n\n"
    )
    subprocess.run(("ssh-keygen", "-q", "-H", "-f", str(file)), check=True, timeout=250, capture_output=True)
    known = KnownHosts([file])
    key = {name: parse(f"x {text}")[0].key for name, text in keys.items()}
    known.check("r10i6n5", key["host"])
    known.check("plain", key["user"])
    for name, wrong in (("plain", "host"), ("plain", "other"), ("r10i6n5", "user")):
        with pytest.raises(HostKeyChanged):
            known.check(name, key[wrong])
    for name in ("r9i6n5", "elsewhere", "[r10i6n5]:22"):
        with pytest.raises(HostUnknown):
            known.check(name, key["host"])


def test_next_way_is_tried_only_if_nothing_has_run(daemon: Sshd) -> None:
    tried: list[str] = []

    class Other:
        name = "other"

        def __init__(self, *, may_have_run: bool) -> None:
            self.may_have_run = may_have_run

        def reaches(self, node: str) -> bool:
            return True

        def run(self, node: str, argv: object, *, timeout: float, stdin: str = "") -> Answer:
            tried.append(node)
            return Answer(node=node, by="other", problem="no", may_have_run=self.may_have_run)

    ways = Fanout(shells=[Other(may_have_run=False), shell(daemon)])
    assert ways.run(["node001"], ("true",), timeout=250)["node001"].by == "ssh"
    ways = Fanout(shells=[Other(may_have_run=True), shell(daemon)])
    assert ways.run(["node001"], ("true",), timeout=250)["node001"].problem == "no"
    assert tried == ["node001", "node001"]


def test_no_ssh_thread_is_left_running(daemon: Sshd) -> None:
    run(daemon, "true")
    deadline = time.monotonic() + 250
    while [thread for thread in threading.enumerate() if "paramiko" in type(thread).__module__]:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.05)


DIES = Path(__file__).with_name("dying_nvidia_smi.sh").read_text()


def test_unreachable_nodes_are_unknown_and_not_drained(
    tmp_path: Path,
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(DIES)
    (tools / "nvidia-smi").chmod(0o755)
    (tools / "smi").write_text(render_smi(failure="Yes"))
    nodes = NODES[:6]
    clock = SystemClock()
    with sshd(tmp_path, nodes, path=f"{tools}:/usr/bin:/bin") as daemon:
        config = daemon.config.read_text().replace(f"Port {daemon.ports['node002']}\n", "Port 1\n")
        daemon.config.write_text(f"Host node004\n  IdentityFile {tmp_path}/other\n{config.replace('Host *', NOT_4)}")
        changed = " ".join((tmp_path / "other.pub").read_text().split()[:2])
        known = daemon.known_hosts.read_text().splitlines()
        known[2] = f"[127.0.0.1]:{daemon.ports['node003']} {changed}"
        daemon.known_hosts.write_text("\n".join(known) + "\n")
        checker = NodeChecker(
            fanout=Fanout(shells=[shell(daemon)]),
            site=HealthSettings(section_seconds=100),
            clock=clock,
            busy={},
            history=NodeHistory(site=SiteDir(tmp_path / ".site"), clock=clock),
        )
        checked = checker.check(nodes)
    health = {verdict.node: verdict.health.value for verdict in checked.verdicts}
    assert health == {**dict.fromkeys(nodes[:5], "unknown"), "node006": "faulty"}
    evidence = {verdict.node: verdict.results[0].evidence for verdict in checked.verdicts}
    assert "connection" in evidence["node001"]
    assert evidence["node002"].endswith("connection refused")
    assert "the host key differs from known_hosts" in evidence["node003"]
    assert "login refused" in evidence["node004"]
    everywhere = [Node(name=name, state="IDLE", address="") for name in NODES]
    plan = plan_drain(checked.verdicts, everywhere, HealthSettings(drain_max=9, drain_percent=100), scores={})
    assert [step.node for step in plan.steps] == ["node006"]


NOT_4 = "Host * !node004"
