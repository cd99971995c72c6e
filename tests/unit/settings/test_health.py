"""Host keys and jump hosts from the files of a user. Connections:
tests/integration/slurm/test_nodes_ssh.py."""

import paramiko
import pytest
from paramiko.config import SSHConfig

from opsctl.host.system import SystemClock
from opsctl.nodes.remote.known_hosts import KnownHosts
from opsctl.nodes.remote.ssh import Ssh
from opsctl.settings.health import RemoteSettings


@pytest.mark.parametrize("end", ["", "\n"])
def test_new_host_key_is_added_after_a_partial_line(tmp_path, end):
    old, new = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    file = tmp_path / "known_hosts"
    file.write_text(f"old {old.get_name()} {old.get_base64()}{end}")
    KnownHosts([file], accept_new=True).check("new", new)
    reread = KnownHosts([file])
    reread.check("old", old)
    reread.check("new", new)


@pytest.mark.parametrize("jump", ["login1,login2:2222", "login1:ssh", "a@b@c", "ssh://login1"])
def test_invalid_jump_host_is_reported(jump):
    ssh = Ssh(RemoteSettings(jump=jump), KnownHosts([]), SSHConfig(), SystemClock())
    answer = ssh.run("node001", ("true",), timeout=5)
    assert (answer.problem, answer.may_have_run) == (
        f"ssh: jump host {jump!r} is not of the form [user@]host[:port]",
        False,
    )
