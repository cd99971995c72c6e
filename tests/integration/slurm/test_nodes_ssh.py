"""Commands by ssh to a real sshd: success, and every way of failing."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.base.model import Node
from opsctl.base.ports import Answer
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.nodes.drain_plan import plan_drain
from opsctl.nodes.health.node_checker import NodeChecker
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.remote.fanout import Fanout, group_answers
from opsctl.nodes.remote.ssh import Ssh
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
    return Ssh(settings=RemoteSettings(**{**daemon.settings, **changes}), runner=SystemRunner())


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


def test_command_that_times_out_may_have_run(daemon: Sshd) -> None:
    answer = run(daemon, "sleep", "600", timeout=0.5)
    assert (answer.code, answer.may_have_run) == (None, True)
    assert answer.problem.startswith("ssh: ")


@pytest.mark.parametrize("code", [0, 1, 255])
def test_exit_code_is_that_of_the_command(daemon: Sshd, code: int) -> None:
    answer = run(daemon, "sh", "-c", f"printf out; printf err >&2; exit {code}")
    assert answer == Answer(node="node001", by="ssh", code=code, out="out", err="err")


def test_node_that_dies_during_a_command_has_not_answered(daemon: Sshd) -> None:
    # The parent of the command's shell is the sshd of this connection.
    answer = run(daemon, "sh", "-c", "echo half; kill -9 $PPID; sleep 5")
    assert answer.code is None
    assert (answer.out, answer.may_have_run) == ("half\n", True)
    assert answer.problem.startswith("ssh: ")


def test_closed_port_means_nothing_has_run(daemon: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host node001\n HostName 127.0.0.1\n Port 1\n")
    answer = run(daemon, "true", ssh_config=str(config))
    assert (answer.code, answer.may_have_run) == (None, False)
    assert answer.problem == "ssh: connect to host 127.0.0.1 port 1: Connection refused"


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
    assert "Permission denied (publickey" in answer.problem
    assert not answer.may_have_run


def test_unknown_host_is_refused_without_accept_new(daemon: Sshd, tmp_path: Path) -> None:
    mine = tmp_path / "my known_hosts"
    answer = run(daemon, "true", known_hosts=(str(mine),))
    assert "host key is known for" in answer.problem
    assert not answer.may_have_run
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
    assert "has changed" in answer.problem
    assert not answer.may_have_run


def test_jump_host_leads_to_the_node(daemon: Sshd) -> None:
    assert run(daemon, "printenv", "SLURMD_NODENAME", jump="node009").out == "node001\n"
    answer = run(daemon, "true", jump="nowhere.invalid")
    assert (answer.code, answer.may_have_run) == (None, False)


def test_jump_host_of_the_configuration_comes_before_that_of_the_site(daemon: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host node001\n ProxyJump node009\n{daemon.config.read_text()}")
    answer = run(daemon, "printenv", "SLURMD_NODENAME", ssh_config=str(config), jump="nowhere.invalid")
    assert answer.out == "node001\n"


@pytest.mark.parametrize("jump", ["login1,login2:2222", "login1:ssh", "a@b@c", "ssh://login1"])
def test_invalid_jump_host_is_reported(daemon: Sshd, jump: str) -> None:
    answer = run(daemon, "true", jump=jump)
    assert not answer.may_have_run
    assert answer.problem == f"ssh: jump host {jump!r} is not of the form [user@]host[:port]"


def test_revoked_host_key_is_refused(daemon: Sshd, tmp_path: Path) -> None:
    mine = tmp_path / "known_hosts"
    mine.write_text(daemon.known_hosts.read_text() + f"@revoked * {(daemon.place / 'host.pub').read_text()}")
    answer = run(daemon, "true", known_hosts=(str(mine),), accept_new=True)
    assert not answer.may_have_run


def test_absent_configuration_is_ignored_and_ssh_never_asks(daemon: Sshd, tmp_path: Path) -> None:
    answer = run(daemon, "true", ssh_config=str(tmp_path / "absent"), user=daemon.user, connect_seconds=0.5)
    assert (answer.code, answer.may_have_run) == (None, False)


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
    assert ways.run_on("node001", ("true",), timeout=250).by == "ssh"
    ways = Fanout(shells=[Other(may_have_run=True), shell(daemon)])
    assert ways.run_on("node001", ("true",), timeout=250).problem == "no"
    assert tried == ["node001", "node001"]


DIES = """#!/bin/sh
case $SLURMD_NODENAME in
node001) # goes down: its end of the connection vanishes
    pid=$$
    until grep -q ^sshd "/proc/$pid/comm"; do pid=$(sed -n "s/^PPid:[[:space:]]*//p" "/proc/$pid/status"); done
    kill -9 "$pid" ;;
node005) echo "<nvidia_smi_log><gpu>"; kill -9 $$ ;;
*) exec cat "$(dirname "$0")/smi" ;;
esac
"""


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
    assert evidence["node002"].endswith("Connection refused")
    assert "has changed" in evidence["node003"]
    assert "Permission denied" in evidence["node004"]
    everywhere = [Node(name=name, state="IDLE", address="") for name in NODES]
    plan = plan_drain(checked.verdicts, everywhere, HealthSettings(drain_max=9, drain_percent=100), scores={})
    assert [step.node for step in plan.steps] == ["node006"]


NOT_4 = "Host * !node004"
