"""A sandbox starts with any host name and any /etc/hosts, as root and as a user, and listens on loopback only."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cases import read_table

CASE = Path(__file__).with_name("host_name_case.py")
ETH = "ip address add 10.9.8.7/24 dev lo"
"""A non-loopback address on the only device of a new network namespace."""
SILENT_DNS = f"""{ETH}; mount --bind resolv.conf /etc/resolv.conf
{sys.executable} -c 'import socket,time; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
s.bind(("10.9.8.7",53)); time.sleep(3000)' & sleep 0.2"""

HARMLESS = re.compile(r"srun: (job \d+ |error: (_server_read: .* Connection reset|step_launch_notify_io_failure: ))")
"""A wait for a busy node, and srun racing with slurmstepd at the end: both depend on the load. Output is compared."""

CASES: dict[str, list[str]] = read_table(__file__, "cases")
CASES["a name server that never answers"][2] = SILENT_DNS


@pytest.fixture(scope="session")
def unshare(_programs: None) -> tuple[str, ...]:
    """The command that enters new host name, network and mount namespaces. Skips where namespaces are not allowed."""
    argv = ("unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    done = subprocess.run([*argv, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this machine makes no namespaces: {done.stderr.strip()}")
    return argv


@pytest.fixture
def start(unshare: tuple[str, ...], tmp_path: Path) -> Callable[..., dict[str, object]]:
    """A function that starts a sandbox with a host name and an /etc/hosts as a user, and returns the results."""

    def run(host: str, hosts: str, setup: str, user: str, extra: str = "") -> dict[str, object]:
        for name, text in (("hosts", hosts), ("resolv.conf", "nameserver 10.9.8.7\n")):
            (tmp_path / name).write_text(text)
        # Only their owner can enter pytest's directories, so the user's files lie below a new /tmp.
        script = f"""set -e; ip link set lo up; mount --bind hosts /etc/hosts; {setup}
        mount -t tmpfs -o mode=1777 none /tmp; mkdir -m 1777 /tmp/case
        {sys.executable} {CASE} {user} /tmp/case {host} {extra}"""
        env = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
        done = subprocess.run(
            [*unshare, "sh", "-c", script],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, object] = json.loads(done.stdout)
        return answer

    return run


@pytest.mark.root
@pytest.mark.parametrize("user", ["root", "games"])
@pytest.mark.parametrize("case", CASES)
def test_sandbox_starts_on_loopback(case: str, user: str, start: Callable[..., dict[str, object]]) -> None:
    fields = start(*CASES[case], user)
    assert fields["srun"] == [f"node001 {user} none", f"node002 {user} none"], fields
    assert fields["batch"] == ["node001", "node002"], fields
    assert not [line for line in str(fields["errors"]).splitlines() if not HARMLESS.match(line)], fields
    assert len(fields["listening"]) == 3  # type: ignore[arg-type]  # a controller and two nodes
    assert set(fields["listening"]) <= {fields["address"], f"::ffff:{fields['address']}"}, fields  # type: ignore[call-overload]
    assert fields["address"] in ("127.0.0.1", "::1")


@pytest.mark.root
@pytest.mark.usefixtures("_accounting")
@pytest.mark.parametrize("case", ["127.0.0.1", "127.0.1.1, as Debian writes", "a machine of IPv6 only"])
def test_accounting_listens_on_loopback_too(case: str, start: Callable[..., dict[str, object]]) -> None:
    fields = start(*CASES[case], "root", "accounting")
    assert fields["srun"] == ["node001 root none", "node002 root none"], fields
    assert len(fields["listening"]) == 4  # type: ignore[arg-type]  # slurmdbd as well
    assert set(fields["listening"]) == {fields["address"]}, fields  # type: ignore[call-overload]
