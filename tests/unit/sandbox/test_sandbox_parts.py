"""The record, programs and ports of a sandbox, without Slurm."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.base.errors import MissingProgram, SandboxError
from opsctl.host.processes import ProcessId
from opsctl.sandbox.cluster import hold_sandbox
from opsctl.sandbox.directories import remove_run_directory
from opsctl.sandbox.loopback import Network
from opsctl.sandbox.namespaces import format_options
from opsctl.sandbox.port_range import BLOCK_PORTS, NameTaken, hold_blocks, hold_names, hold_ports, is_free
from opsctl.sandbox.programs import find_programs, install_hint
from opsctl.sandbox.record import Places, SandboxDaemon, SandboxRecord, read_record
from opsctl.sandbox.slurm_conf import Auth, SandboxSite, SandboxSpec


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(state=tmp_path / "state", cache=tmp_path / "cache", run=tmp_path)


def make_record(home: Path) -> SandboxRecord:
    network = Network(address="::1", parameters=("EnableIPv6", "DisableIPv4"), confined=True)
    site = SandboxSite(
        home=home,
        run=home / "r",
        host="h",
        user="u",
        version=(22, 5),
        first_port=20000,
        auth=Auth.MUNGE,
        network=network,
        shared=True,
    )
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
