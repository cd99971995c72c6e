"""`opsctl sandbox up` and `down`, and their leftovers, on real Slurms."""

import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.base.errors import InputError, SandboxError
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec
from tests.support.slurms import OPSCTL, Up, run_slurm, wait_until


def opsctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OPSCTL, *words], capture_output=True, text=True, timeout=250, check=False)


def find_mentions(run: Path) -> list[str]:
    """Return the processes with the run directory in environment or arguments, found without opsctl's code."""
    names = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(run) in text and int(process.name) != os.getpid():
            names.append(process.name)
    return names


@pytest.fixture
def mine(home: Path) -> Iterator[Places]:
    """The directories in which `opsctl` puts the sandboxes of this test. The sandboxes are ended afterwards."""
    places = Places.default()
    yield places
    for name in {path.name for path in places.state.glob("*")}:
        Sandbox.end(name, places=places, clock=SystemClock(), grace=0.2)


def test_job_runs_on_every_node_and_sees_its_gpus(slurm: Sandbox) -> None:
    text = run_slurm(slurm, "srun", "-N4", "--gres=gpu:2", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES")
    assert sorted(text.splitlines()) == ["node001 0,1", "node002 0,1", "node003 0,1", "node004 0,1"]


def test_queued_job_gains_age(slurm: Sandbox) -> None:
    first, second = (
        run_slurm(slurm, "sbatch", "--parsable", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
        for _ in range(2)
    )
    wait_until(lambda: "AccrueTime=2" in run_slurm(slurm, "scontrol", "show", "job", second.strip()))
    run_slurm(slurm, "scancel", first.strip(), second.strip())


def test_daemons_listen_on_loopback_only(slurm: Sandbox) -> None:
    first = slurm.record.site.first_port
    ports = {f"{port:04X}" for port in range(first, first + 6)}
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {row[1] for row in rows if row[3] == "0A" and row[1].partition(":")[2] in ports}
    assert len(listening) == 5  # a controller and four nodes
    assert all(address.startswith("0100007F:") for address in listening)


def test_keys_are_private_and_configuration_is_public(slurm: Sandbox) -> None:
    site = slurm.record.site
    assert stat.S_IMODE((site.home / "munge.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(site.home.stat().st_mode) == 0o700
    assert stat.S_IMODE(site.conf.stat().st_mode) == 0o644


def test_down_ends_jobs_and_daemons_and_removes_the_files(fresh_slurm: Up) -> None:
    sandbox = fresh_slurm()
    run_slurm(sandbox, "sbatch", "-N2", "--output=/dev/null", "--wrap=trap '' TERM; sleep 1000 & sleep 1000")
    wait_until(lambda: "R" in run_slurm(sandbox, "squeue", "--noheader", "--format=%t"))
    run = sandbox.record.site.run
    assert sandbox.down().remaining == ()
    assert find_mentions(run) == []
    assert not run.exists()
    assert not sandbox.record.site.home.exists()


def test_down_finds_processes_without_a_record(fresh_slurm: Up) -> None:
    sandbox = fresh_slurm()
    (sandbox.record.site.home / "sandbox.json").unlink()
    assert sandbox.down().count >= 4  # munged, slurmctld, two slurmds
    assert find_mentions(sandbox.record.site.run) == []


def test_down_leaves_a_shell_that_only_uses_the_sandbox(fresh_slurm: Up) -> None:
    sandbox = fresh_slurm(nodes=1)
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **sandbox.env()}) as users_own:
        sandbox.down()
        assert users_own.poll() is None
        users_own.kill()


def test_simultaneous_sandboxes_are_separate(fresh_slurm: Up) -> None:
    small, large = fresh_slurm(nodes=1), fresh_slurm(nodes=2)
    assert run_slurm(small, "sinfo", "-h", "-pmain", "-o%D").strip() == "1"
    small.down()
    assert run_slurm(large, "sinfo", "-h", "-pmain", "-o%D").strip() == "2"


def test_second_up_changes_nothing(mine: Places) -> None:
    first = opsctl("up", "--nodes", "1")
    second = opsctl("up", "--nodes", "1")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert second.stdout.startswith("sandbox 'default': 1 node of 2 GPUs; it was up already\n")
    third = opsctl("up", "--nodes", "2")
    assert third.returncode == 1
    assert "sandbox 'default' is up already, with 1 node of 2 GPUs" in third.stderr
    fourth = json.loads(opsctl("up", "--nodes", "1", "--json").stdout)
    assert (fourth["name"], fourth["nodes"], fourth["was_up"]) == ("default", 1, True)
    assert Path(fourth["env"]["SLURM_CONF"]).is_file()
    for action in ("stop", "resume"):
        hurt = json.loads(opsctl("fault", "node001", action, "--json").stdout)
        assert hurt == {"name": "default", "target": "node001", "action": action}
    assert opsctl("down").stdout == "sandbox 'default' is down: 4 processes ended, none left\n"
    assert opsctl("down").stdout == "sandbox 'default' was not up; no files are left\n"


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1])
def test_leftovers_of_a_killed_up_are_ended_by_down(mine: Places, delay: float) -> None:
    run = mine.run_directory("default")
    with subprocess.Popen([*OPSCTL, "up", "--nodes", "16"], stdout=subprocess.DEVNULL) as up:
        wait_until(lambda: find_mentions(run))
        time.sleep(delay)
        up.kill()
    done = opsctl("down")
    assert done.returncode == 0, done.stderr
    assert find_mentions(run) == []
    assert not run.exists()


def test_up_after_a_crash_cleans_leftovers_first(fresh_slurm: Up, places: Places) -> None:
    old = fresh_slurm()
    old.record.daemons[1].process.send(signal.SIGKILL)  # the controller
    wait_until(lambda: not old.record.daemons[1].process.is_alive)
    new = Sandbox.up(old.record.spec, places=places, clock=SystemClock(), runner=SystemRunner())
    assert not new.was_up
    assert not any(daemon.process.is_alive for daemon in old.record.daemons)
    assert new.status().is_up


def test_ctrl_c_during_up_leaves_nothing_running(mine: Places) -> None:
    run = mine.run_directory("default")
    with subprocess.Popen([*OPSCTL, "up", "--nodes", "16"], stdout=subprocess.DEVNULL) as up:
        wait_until(lambda: find_mentions(run))
        up.send_signal(signal.SIGINT)
        assert up.wait(250) == 130
    assert find_mentions(run) == []


def test_daemon_that_does_not_start_is_named_with_its_log(places: Places, tmp_path: Path) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "slurmd").write_text("#!/bin/sh\necho no luck today; exit 1\n")
    (broken / "slurmd").chmod(0o755)
    spec = SandboxSpec(name="broken", nodes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{broken}:{os.environ['PATH']}")
        with pytest.raises(SandboxError, match=r"node001 did not start\n  node001.out: no luck today"):
            Sandbox.up(spec, places=places, clock=SystemClock(), runner=SystemRunner())
    assert find_mentions(places.run_directory("broken")) == []


def test_status_counts_nodes_processes_and_memory(fresh_slurm: Up) -> None:
    status = fresh_slurm().status()
    assert status.nodes == {"node001": "idle", "node002": "idle"}
    assert (status.is_up, status.dead) == (True, ())
    assert status.processes == 5  # munged, slurmctld and its script runner, 2 slurmds
    assert 1 << 20 < status.memory_bytes < 1 << 30


def test_env_can_be_evaluated_by_a_shell(mine: Places) -> None:
    opsctl("up", "--nodes", "1")
    text = opsctl("env").stdout
    done = subprocess.run(["sh", "-c", f"{text}\nsinfo -h -pmain -o %D"], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_opening_a_missing_sandbox_names_the_command(places: Places) -> None:
    with pytest.raises(InputError, match="there is no sandbox 'nowhere'") as caught:
        Sandbox.open("nowhere", places=places, clock=SystemClock(), runner=SystemRunner())
    assert caught.value.hint == "opsctl sandbox up --name nowhere"
