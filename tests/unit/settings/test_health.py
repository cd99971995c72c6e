"""Host keys and jump hosts, as people write them into their files. Connections:
tests/integration/slurm/test_nodes_ssh.py."""

import paramiko
import pytest
from paramiko.config import SSHConfig

from opsctl.host.system import SystemClock
from opsctl.nodes.remote.known_hosts import KnownHosts
from opsctl.nodes.remote.ssh import Ssh
from opsctl.settings.health import RemoteSettings


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_new_host_is_written_below_a_last_line_without_an_end(tmp_path, end):
    old, new = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    file = tmp_path / "known_hosts"
    file.write_text(f"old {old.get_name()} {old.get_base64()}{end}")
    KnownHosts([file], accept_new=True).check("new", new)
    again = KnownHosts([file])
    again.check("old", old)
    again.check("new", new)


@pytest.mark.parametrize("jump", ["login1,login2:2222", "login1:ssh", "a@b@c", "ssh://login1"])
def test_what_names_no_one_jump_host_is_an_answer_and_no_bug_of_ours(jump):
    way = Ssh(RemoteSettings(jump=jump), KnownHosts([]), SSHConfig(), SystemClock())
    answer = way.run("node001", ("true",), timeout=5)
    assert (answer.problem, answer.may_have_run) == (
        f"ssh: jump host {jump!r} is not of the form [user@]host[:port]", False,
    )  # fmt: skip
