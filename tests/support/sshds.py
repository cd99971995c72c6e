"""A real sshd for tests, with its own keys and one loopback port for each node; ended by PID."""

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import HeldPort

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Sshd:
    """The ports of an sshd, and the files that a client needs."""

    def __init__(self, place: Path, nodes: Sequence[str]) -> None:
        self.place = place
        self.held = {node: HeldPort() for node in nodes}
        self.ports = {node: held.number for node, held in self.held.items()}
        self.known_hosts = place / "known_hosts"
        self.config = place / "ssh_config"
        self.user = pwd.getpwuid(os.geteuid()).pw_name

    @property
    def settings(self) -> dict[str, object]:
        """Return settings for RemoteSettings."""
        return {"ssh_config": str(self.config), "known_hosts": (str(self.known_hosts),), "connect_seconds": 60.0}

    @property
    def toml(self) -> str:
        return f"""[remote]
ways = ["srun", "job", "ssh"]
ssh_config = "{self.config}"
known_hosts = ["{self.known_hosts}"]
connect_seconds = 60.0
"""

    def write(self, path: str) -> Path:
        """Write all files and return the path of sshd_config. `path` is the PATH of commands."""
        for key in ("host", "user", "other"):
            argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.place / key))
            subprocess.run(argv, check=True, timeout=250)
        (self.place / "authorized").write_text((self.place / "user.pub").read_text())
        kind, key = (self.place / "host.pub").read_text().split()[:2]
        lines = [f"[127.0.0.1]:{port} {kind} {key}\n" for port in self.ports.values()]
        self.known_hosts.write_text("".join(lines))
        hosts = [f"Host {node}\n  HostName 127.0.0.1\n  Port {port}\n" for node, port in self.ports.items()]
        self.config.write_text("".join(hosts) + f"Host *\n  User {self.user}\n  IdentityFile {self.place}/user\n")
        return self._write_config(path)

    def _write_config(self, path: str) -> Path:
        settings = [
            f"HostKey {self.place}/host",
            f"AuthorizedKeysFile {self.place}/authorized",
            "PidFile none",
            "ListenAddress 127.0.0.1",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "MaxStartups 200",
            "LogLevel ERROR",
            *(f"Port {port}" for port in self.ports.values()),
        ]
        if has_setting("PerSourcePenalties=no"):  # since 9.8 sshd ignores a client for a while after a refusal
            settings.append("PerSourcePenalties no")
        for node, port in self.ports.items():
            settings += [f"Match LocalPort {port}", f"SetEnv SLURMD_NODENAME={node} HOME={self.place} PATH={path}"]
        config = self.place / "sshd_config"
        config.write_text("\n".join(settings) + "\n")
        return config


def has_setting(setting: str) -> bool:
    """Return whether this sshd has a setting. Other errors, such as missing host keys, have other messages."""
    done = subprocess.run(
        (str(SSHD), "-t", "-f", "/dev/null", "-o", setting), capture_output=True, text=True, check=False
    )
    return "Bad configuration option" not in done.stderr


@contextmanager
def sshd(place: Path, nodes: Sequence[str], path: str = "/usr/bin:/bin") -> Iterator[Sshd]:
    """Start an sshd that answers for these nodes, at most 16."""
    if SSHD is None:
        pytest.skip("no sshd here: apt-get install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    daemon = Sshd(place, nodes)
    config = daemon.write(path)
    log = (place / "sshd.log").open("w")
    argv = (SSHD, "-D", "-e", "-f", str(config))
    process = subprocess.Popen(argv, stderr=log, stdin=subprocess.DEVNULL)
    try:
        for port in daemon.ports.values():
            _wait_listening(port, process)
        yield daemon
    finally:
        process.terminate()
        process.wait(250)
        log.close()
        for held in daemon.held.values():
            held.let_go()


def _wait_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 250
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"sshd does not listen on {port}")
