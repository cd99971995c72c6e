"""The choice of a sandbox's network by name resolution, and the library that binds to loopback."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from opsctl.base.errors import SandboxError
from opsctl.sandbox.loopback import (
    Network,
    build_library,
    choose_library_path,
    choose_network,
    is_supported,
    resolve_bounded,
)

FOUR, ANY, SIX = socket.AF_INET, socket.AF_UNSPEC, socket.AF_INET6
BIND = """
import json, socket, sys
names = []
for family, address in ((socket.AF_INET, ""), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")):
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        names.append(listener.getsockname()[0])
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    names.append(listener.getsockname())
with socket.socket() as listener, socket.socket() as other:
    listener.bind(("", 0))
    listener.listen()
    try:
        other.bind(("", listener.getsockname()[1]))
    except OSError as error:
        names.append(error.strerror)
print(json.dumps(names))
"""


def network(answers: Mapping[tuple[str, int], str], machine: str = "x86_64") -> Network:
    return choose_network("here", lambda name, family: answers.get((name, family)), machine)


def test_slurm_binds_by_itself_where_the_name_is_loopback() -> None:
    chosen = network({("127.0.0.1", FOUR): "127.0.0.1", ("here", FOUR): "127.0.0.1"})
    assert chosen == Network(address="127.0.0.1", parameters=("NoCtldInAddrAny", "NoInAddrAny"), confined=False)


@pytest.mark.parametrize("address", ["127.0.1.1", "10.0.0.7", None])
def test_library_confines_daemons_where_the_name_is_not_loopback(address: str | None) -> None:
    answers = {("127.0.0.1", FOUR): "127.0.0.1"} | ({("here", FOUR): address} if address else {})
    assert network(answers) == Network(address="127.0.0.1", parameters=(), confined=True)


def test_ipv6_is_enabled_where_only_loopback_is_there() -> None:
    assert network({("127.0.0.1", ANY): "127.0.0.1"}).parameters == ("EnableIPv6",)
    assert network({("127.0.0.1", ANY): "127.0.0.1"}).ipv6_address == "::ffff:127.0.0.1"


def test_loopback_is_ipv6_where_the_network_is_ipv6_alone() -> None:
    chosen = network({("::1", SIX): "::1", ("here", SIX): "fd00::7"})
    assert chosen == Network(address="::1", parameters=("EnableIPv6", "DisableIPv4"), confined=True)
    assert chosen.ipv6_address == "::1"


def test_no_loopback_is_an_error_with_a_remedy() -> None:
    with pytest.raises(SandboxError, match="no usable loopback address") as failure:
        network({})
    assert failure.value.hint == "ip link set lo up"


def test_unknown_processor_gets_a_hosts_line() -> None:
    with pytest.raises(SandboxError, match="'here' does not resolve to") as failure:
        network({("127.0.0.1", FOUR): "127.0.0.1", ("here", FOUR): "10.0.0.7"}, machine="s390x")
    assert failure.value.hint == "add the line `127.0.0.1 here` to /etc/hosts, before other lines that name here"


def test_absent_names_resolve_to_none() -> None:
    assert resolve_bounded("127.0.0.1", ANY) == "127.0.0.1"
    assert resolve_bounded("no-such-host.invalid", ANY) is None


def test_library_path_is_one_that_ld_preload_can_hold(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    good = tmp_path / "loopback.so"
    assert choose_library_path([tmp_path / "a b" / "loopback.so", good]) == good
    with pytest.raises(SandboxError, match="no program may load code from"):
        choose_library_path([tmp_path / "a b" / "loopback.so"])


@pytest.mark.skipif(not is_supported(), reason=f"there is no code for {os.uname().machine}")
@pytest.mark.parametrize("ipv6_address", ["::1", "::ffff:127.0.0.1"])
def test_program_with_the_library_binds_to_loopback_alone(ipv6_address: str, tmp_path: Path) -> None:
    library = tmp_path / "loopback.so"
    library.write_bytes(build_library(ipv6_address))
    path = str(tmp_path / "socket")
    done = subprocess.run(
        [sys.executable, "-c", BIND, path],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    expected = ["127.0.0.1", "127.0.0.1", ipv6_address, path, "Address already in use"]
    assert done.stdout.strip() == str(expected).replace("'", '"')


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_library_of_every_processor_is_a_shared_object(machine: str, number: int) -> None:
    data = build_library("::1", machine)
    assert data[:4] == b"\x7fELF"
    assert int.from_bytes(data[18:20], "little") == number
    assert (1).to_bytes(16, "big") in data
