"""The parts of a sandbox: limits, configuration files, sockets, and causes found in messages of Slurm and munge."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.base.errors import InputError, MissingProgram, SandboxError
from opsctl.host.processes import ProcessId
from opsctl.sandbox.cluster import BLOCK_PORTS, NameTaken, hold_blocks, hold_names, hold_ports, hold_sandbox, is_free
from opsctl.sandbox.loopback import Network
from opsctl.sandbox.namespaces import format_options
from opsctl.sandbox.programs import find_programs, install_hint
from opsctl.sandbox.record import Places, SandboxDaemon, SandboxRecord, read_record, remove_run_directory
from opsctl.sandbox.slurm_conf import Auth, SandboxSite, SandboxSpec, render_conf
from opsctl.sandbox.start_failures import accepts, describe_socket, find_causes, list_listening_sockets, to_plain
from tests.support.cases import read_cases


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(state=tmp_path / "state", cache=tmp_path / "cache", run=tmp_path)


NETWORK = Network(address="127.0.0.1", parameters=(), confined=True)
SITE = SandboxSite(
    home=Path("/h"),
    run=Path("/r"),
    host="here",
    user="me",
    version=(22, 5),
    first_port=21000,
    auth=Auth.MUNGE,
    network=NETWORK,
    shared=False,
)


def make_record(home: Path) -> SandboxRecord:
    network = Network(address="::1", parameters=("EnableIPv6", "DisableIPv4"), confined=True)
    site = replace(SITE, home=home, run=home / "r", network=network, shared=True)
    daemon = SandboxDaemon(name="slurmctld", argv=("slurmctld", "-D"), process=ProcessId(pid=2, started=3))
    started = datetime(2026, 1, 2, tzinfo=UTC)
    return SandboxRecord(spec=SandboxSpec(nodes=2, fast=True), site=site, started=started, daemons=(daemon,))


def test_record_is_read_as_written(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    record.save()
    assert read_record(tmp_path) == record


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"spec": {"name": "../x"}, "site": {}}', '{"spec": {"new": 1}}']
)
def test_invalid_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "sandbox.json").write_text(text)
    assert read_record(tmp_path) is None


def test_restarted_daemon_replaces_its_entry(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    again = replace(record.daemons[0], process=ProcessId(pid=9, started=9))
    assert record.with_daemon(again).daemons == (again,)


def test_state_directories_have_separate_run_directories(places: Places, tmp_path: Path) -> None:
    other = replace(places, state=tmp_path / "other")
    assert places.run_directory("x") == places.run_directory("x") != other.run_directory("x")


def test_error_names_all_missing_programs() -> None:
    with pytest.raises(MissingProgram) as exception_info:
        find_programs("/nonexistent", accounting=True, sbin=())
    assert exception_info.value.message == (
        "not installed: slurmctld, slurmd, sinfo, scontrol, srun, munged, "
        "slurmdbd, sacctmgr, mariadbd, mariadb-install-db"
    )
    assert exception_info.value.hint == install_hint(accounting=True)


def test_hint_names_debian_and_rhel_packages() -> None:
    sudo = "" if os.geteuid() == 0 else "sudo "
    assert install_hint(accounting=False) == (
        f"Debian, Ubuntu:  {sudo}apt-get install -y --no-install-recommends "
        "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge\n"
        f"Fedora, RHEL with EPEL:  {sudo}dnf install -y slurm slurm-slurmctld slurm-slurmd munge"
    )


def test_up_without_slurm_exits_1_with_the_hint(tmp_path: Path) -> None:
    env = {"PATH": "/nonexistent", "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", "sandbox", "up"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("opsctl: not installed: ")
    assert "apt-get install -y --no-install-recommends slurmctld slurmd" in done.stderr
    assert not list(tmp_path.rglob("sandbox.json"))


def test_name_is_held_once_and_released() -> None:
    with hold_names("unit-a"), pytest.raises(NameTaken), hold_names("unit-b", "unit-a"):
        pass
    with hold_names("unit-a", "unit-b"):
        pass


def test_second_command_on_a_sandbox_is_refused(places: Places) -> None:
    literal = "another command is bringing sandbox 'x' up or down just now"
    with hold_sandbox(places, "x"), hold_sandbox(places, "y"), pytest.raises(SandboxError, match=literal):  # noqa: SIM117 (one raises)
        with hold_sandbox(places, "x"):
            pass


def test_held_ports_are_free_and_distinct() -> None:
    with hold_ports(40) as first, hold_ports(40) as second:
        assert not set(range(first, first + 40)) & set(range(second, second + 40))
        assert all(is_free(port) for port in range(first, first + 40))


def test_block_with_a_used_port_is_not_held() -> None:
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port)
        assert not hold_blocks(stack, port - BLOCK_PORTS + 1, 1)


def test_link_at_the_run_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "precious")
    remove_run_directory(tmp_path / "run")
    assert (tmp_path / "precious").is_dir()


def test_format_options_keeps_every_option() -> None:
    spec = SandboxSpec(nodes=3, gpus_per_node=1, accounting=True, fast=True)
    assert format_options(spec) == ["--nodes", "3", "--gpus-per-node", "1", "--accounting", "--fast"]


@pytest.mark.parametrize("name", ["", "../up", "a/b", "-x", "A", "a b", "a\n", "é", "x" * 33, "$(id)", ".", "a;b"])
def test_hostile_name_is_refused(name: str) -> None:
    with pytest.raises(InputError) as exception_info:
        SandboxSpec(name=name)
    assert exception_info.value.message == f"sandbox name {name!r} is not allowed"


@pytest.mark.parametrize(*read_cases(__file__, "impossible_size_is_refused"))
def test_impossible_size_is_refused(size: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as exception_info:
        SandboxSpec(**size)  # type: ignore[arg-type]  # the parameters are numbers
    assert exception_info.value.message == message


def test_every_node_has_its_own_port() -> None:
    text = render_conf("slurm.conf", SandboxSpec(nodes=12, gpus_per_node=8), SITE)
    assert "NodeName=node[001-012] NodeHostname=here NodeAddr=127.0.0.1 Port=[21002-21013]" in text
    assert "Gres=gpu:8" in text


def test_single_node_has_no_brackets_and_no_gres() -> None:
    text = render_conf("slurm.conf", SandboxSpec(nodes=1), SITE)
    assert "NodeName=node001 NodeHostname=here NodeAddr=127.0.0.1 Port=21002 " in text
    assert "gres" not in text.lower()
    assert render_conf("gres.conf", SandboxSpec(nodes=1), SITE) == ""


def test_auth_none_needs_no_munge() -> None:
    site = replace(SITE, auth=Auth.NONE)
    texts = [render_conf(name, SandboxSpec(accounting=True), site) for name in ("slurm.conf", "slurmdbd.conf")]
    assert "AuthType=auth/none\nCredType=cred/none\n" in texts[0]
    assert "munge" not in "".join(texts)


def test_spec_is_described_in_words() -> None:
    assert SandboxSpec(nodes=1, gpus_per_node=1).describe() == "1 node of 1 GPU"
    assert SandboxSpec(nodes=8, accounting=True, fast=True).describe() == "8 nodes, accounting, fast timers"


@pytest.mark.parametrize(*read_cases(__file__, "cause_is_read_from_a_log"))
def test_cause_is_read_from_a_log(line: str, cause: str) -> None:
    (actual,) = find_causes(f"[2026-11-22] slurmctld version 22.05 started\n{line}\n")
    assert cause in actual


def test_causes_have_the_order_of_the_log() -> None:
    text = "No space left on device\nerror: cannot find auth plugin for auth/x\nNo space left on device\n"
    first, second = find_causes(text)
    assert "no space" in first
    assert "auth/x" in second
    assert find_causes("error: Couldn't find the specified plugin name for mpi/pmix_v4 looking at all files") == []


@pytest.mark.parametrize(*read_cases(__file__, "address_of_a_listening_socket_is_judged"))
def test_address_of_a_listening_socket_is_judged(address: str, text: str, is_loopback: bool) -> None:
    assert (describe_socket(address, 21000), to_plain(address).is_loopback) == (text, is_loopback)
    assert accepts(address, "127.0.0.1") == (address in {"127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "::"})


def test_only_listening_sockets_are_listed_with_their_process() -> None:
    with socket.socket() as silent, socket.create_server(("127.0.0.1", 0)) as server:
        silent.bind(("127.0.0.1", 0))
        ports = {row.laddr.port: row for row in list_listening_sockets()}
        assert ports[server.getsockname()[1]].pid == os.getpid()
        assert silent.getsockname()[1] not in ports
