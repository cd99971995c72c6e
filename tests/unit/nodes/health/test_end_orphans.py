"""Orphan processes are ended by PID and start time, here by the script that runs on nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from opsctl.host.processes import ProcessId
from opsctl.host.system import SystemRunner
from opsctl.nodes.health.end_orphans import end_orphans, find_orphans
from opsctl.nodes.health.node_state import NodeProcess
from opsctl.nodes.remote.fanout import Fanout, Local
from opsctl.settings.health import HealthSettings
from tests.support.made_nodes import make_snapshot, render_smi

HERE = Fanout(shells=[Local(runner=SystemRunner(), names={"node001"})])


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(("sleep", "60"))
    yield process
    process.kill()
    process.wait()


def orphan(process: subprocess.Popen[bytes], *, later: int = 0) -> NodeProcess:
    process_id = ProcessId.of(process.pid)
    assert process_id is not None
    return NodeProcess(
        pid=process_id.pid, uid=1001, state="S", age_s=9, start_ticks=process_id.started + later, name="x"
    )


def test_orphan_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    assert end_orphans(HERE, make_snapshot(), [orphan(sleeper)]).out == f"{sleeper.pid}\n"
    assert sleeper.wait(250) == -9


def test_later_process_with_the_same_pid_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    assert end_orphans(HERE, make_snapshot(), [orphan(sleeper, later=-1)]).out == ""
    assert sleeper.poll() is None


def test_only_user_processes_on_gpus_are_orphans() -> None:
    gpu_processes = "".join(f"<process_info><pid>{pid}</pid></process_info>" for pid in (5, 6, 7))
    rows = [
        NodeProcess(pid=pid, uid=uid, state=state, age_s=9, start_ticks=1, name="x")
        for pid, uid, state in ((5, 1001, "S"), (6, 0, "S"), (7, 1001, "Z"), (8, 1001, "S"))
    ]
    snapshot = replace(make_snapshot(smi=render_smi(processes=gpu_processes)), processes=tuple(rows))
    assert [orphan.pid for orphan in find_orphans(snapshot, HealthSettings())] == [5]
