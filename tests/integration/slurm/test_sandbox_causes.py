"""Real daemons that do not start for a known reason: the message names the cause."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.base.errors import SandboxError
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import is_free, try_start
from opsctl.sandbox.daemons import Tools, start_munged, wait_listening
from opsctl.sandbox.faults import FaultKind
from opsctl.sandbox.programs import find_programs
from opsctl.sandbox.record import CONTROLLER, MUNGED, Places
from opsctl.sandbox.start_failures import check_loopback
from tests.support.slurms import Up, wait_until


def test_daemon_on_another_address_is_named_with_both(fresh_slurm: Up) -> None:
    record = fresh_slurm(nodes=1).record
    port = record.site.controller_port
    network = replace(record.site.network, address="127.0.0.2")
    moved = replace(record, site=replace(record.site, network=network))
    with pytest.raises(SandboxError, match=rf"slurmctld listens on 127\.0\.0\.1:{port}, not on 127\.0\.0\.2"):
        wait_listening(moved, SystemClock(), CONTROLLER, port)  # at its limit it would say that nothing listens


def test_taken_port_is_named_with_its_process(fresh_slurm: Up) -> None:
    sandbox = fresh_slurm(nodes=1)
    sandbox.fault("controller", FaultKind.KILL)
    port = sandbox.record.site.controller_port
    wait_until(lambda: is_free(port))  # processes of the controller hold the port for a moment
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        with pytest.raises(SandboxError, match=rf"cause: port {port} is taken by \S+ \(process \d+\)"):
            sandbox.fault("controller", FaultKind.RESTART)


def test_missing_plugin_is_named_with_the_package(fresh_slurm: Up) -> None:
    sandbox = fresh_slurm(nodes=1)
    text = sandbox.conf.read_text()
    sandbox.conf.write_text(text.replace("SelectType=select/cons_tres", "SelectType=select/absent"))
    with pytest.raises(SandboxError, match="cause: Slurm's plugin select/absent is missing; install it: apt-get"):
        sandbox.fault("controller", FaultKind.RESTART)
    sandbox.conf.write_text(text)


@pytest.mark.root
def test_key_that_munged_refuses_is_named(fresh_slurm: Up, places: Places) -> None:
    sandbox = fresh_slurm(nodes=1)
    if not sandbox.record.site.shared:
        pytest.skip("munged is forced to take its key where it is not root's")
    (sandbox.record.site.home / "munge.key").chmod(0o644)
    munged = sandbox.record.daemon(MUNGED)
    assert munged is not None
    munged.process.send(9)
    wait_until(lambda: not munged.process.is_alive)
    sandbox.record.site.munge_socket.unlink()
    tools = Tools(
        clock=SystemClock(), runner=SystemRunner(), places=places, programs=find_programs("/usr/bin", accounting=False)
    )
    with pytest.raises(SandboxError, match=r"cause: munged refuses its key: .*munge\.key"):
        start_munged(sandbox.record, tools)


def test_trial_start_is_timed_and_leaves_nothing(_programs: None) -> None:
    seconds, site = try_start(clock=SystemClock(), runner=SystemRunner())
    assert site.network.address in ("127.0.0.1", "::1")
    assert 0 < seconds < 10
    assert not list(Places.default().run.glob("opsctl-doctor-*"))


def test_port_that_is_open_to_the_network_is_refused(fresh_slurm: Up) -> None:
    record = fresh_slurm(nodes=1).record
    check_loopback(record)
    with socket.socket() as open_to_all:
        open_to_all.bind(("0.0.0.0", record.site.dbd_port))
        open_to_all.listen()
        with pytest.raises(SandboxError, match=rf"listens on 0\.0\.0\.0:{record.site.dbd_port}, which is not loopback"):
            check_loopback(record)


def run_doctor(path: str, tmp_path: Path) -> tuple[int, dict[str, str]]:
    """Run `opsctl doctor` and return its exit code and its line about the start of a sandbox."""
    site = tmp_path / "site.toml"
    site.write_text(f'engine = "sandbox"\nroot = "{tmp_path}/trains"\n')
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", "--site", str(site), "doctor", "--json"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    return done.returncode, next(line for line in json.loads(done.stdout) if line["check"] == "sandbox start")


def test_doctor_starts_a_sandbox_and_names_its_address(_programs: None, tmp_path: Path) -> None:
    _, line = run_doctor(os.environ["PATH"], tmp_path)
    assert line["severity"] == "ok"
    assert "1 node up on 127.0.0.1 in" in line["result"] or "1 node up on ::1 in" in line["result"]


def test_doctor_reports_why_a_sandbox_does_not_start(_programs: None, tmp_path: Path) -> None:
    broken = tmp_path / "slurmctld"
    fatal = "fatal: Can't find plugin for select/cons_tres"
    broken.write_text(f'#!/bin/sh\ncase $1 in -V) echo slurm 22.05.8;; *) echo "{fatal}"; exit 1;; esac\n')
    broken.chmod(0o755)
    code, line = run_doctor(f"{tmp_path}:{os.environ['PATH']}", tmp_path)
    assert (code, line["severity"]) == (1, "missing")
    assert line["result"].startswith("slurmctld did not start\n  cause: Slurm's plugin select/cons_tres is missing")
    assert line["advice"] == "opsctl sandbox up --nodes 1 fails in the same way and keeps all logs"
