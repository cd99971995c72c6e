"""The fact-gathering script on this machine: library versions, a real fio, a hanging fio, a missing directory."""

import os
import shutil
from pathlib import Path

import pytest

from opsctl.host.system import SystemClock, SystemRunner
from opsctl.nodes.health.node_checker import NodeChecker
from opsctl.nodes.health.node_state import CheckResult, CheckSeverity
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.remote.fanout import Fanout, Local
from opsctl.settings.health import HealthSettings
from opsctl.state.site_dir import SiteDir

HANGS = """#!/bin/sh
for each; do case $each in --filename=*) echo begun | tee "${each#*=}" >"$0.begun" ;; esac; done
sleep 3000
"""


def make_checker(place: Path, path: str = "", **site: float) -> NodeChecker:
    clock = SystemClock()
    runner = SystemRunner(env={"PATH": f"{path}:{os.environ['PATH']}"})
    return NodeChecker(
        fanout=Fanout(shells=[Local(runner=runner, names=["node001"])]),
        clock=clock,
        busy={},
        site=HealthSettings(section_seconds=30, **site),
        history=NodeHistory(site=SiteDir(place / ".site"), clock=clock),
    )


def test_library_versions_are_gathered(tmp_path: Path) -> None:
    snapshot = make_checker(tmp_path).gather(["node001"])["node001"]
    assert snapshot.section("libraries").code == 0
    assert snapshot.libraries["libc"]


def check_directory(place: Path, directory: Path, *, path: str = "", **site: float) -> CheckResult:
    """Return the result of the fio check of `directory` on this machine."""
    [verdict] = make_checker(place, path, **site).check(["node001"], fio=str(directory)).verdicts
    [result] = [result for result in verdict.results if result.check == "fio"]
    return result


@pytest.mark.skipif(shutil.which("fio") is None, reason="no fio here: apt-get install fio")
def test_directory_is_measured_and_left_unchanged(tmp_path: Path) -> None:
    directory = tmp_path / "it's a $(place)"
    directory.mkdir()
    (directory / "mine").write_text("mine")
    result = check_directory(tmp_path, directory, fio_mib=4)
    assert (result.severity, result.evidence.startswith("write ")) == (CheckSeverity.NOTE, True), result
    assert [path.name for path in directory.iterdir()] == ["mine"]


def test_hanging_fio_is_abandoned_and_its_file_removed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "fio").write_text(HANGS)
    (tmp_path / "bin" / "fio").chmod(0o755)
    directory = tmp_path / "scratch"
    directory.mkdir()
    result = check_directory(tmp_path, directory, path=str(tmp_path / "bin"), fio_mib=4, fio_seconds=1)
    assert (result.severity, result.evidence) == (CheckSeverity.UNKNOWN, "fio did not answer in time")
    assert (tmp_path / "bin" / "fio.begun").exists()
    assert list(directory.iterdir()) == []


@pytest.mark.skipif(shutil.which("fio") is None, reason="no fio here: apt-get install fio")
def test_directory_without_room_is_not_filled(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free >> 20
    if free // 4 + 2000 > 65_536:
        pytest.skip(f"{free} MiB are free: more than any test file needs")
    result = check_directory(tmp_path, tmp_path, fio_mib=free // 4 + 2000)  # other processes use this disk too
    assert (result.severity, "has no room for four times" in result.evidence) == (CheckSeverity.UNKNOWN, True)
    assert "no such directory" in check_directory(tmp_path, tmp_path / "nowhere").evidence
