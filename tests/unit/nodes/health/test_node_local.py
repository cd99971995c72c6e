"""The scripts that run on nodes: evidence of one node, and the end of its orphan processes."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.host.processes import ProcessId
from opsctl.host.system import SystemRunner
from opsctl.nodes.health.end_orphans import end_orphans, find_orphans
from opsctl.nodes.health.node_local import main, read_thresholds
from opsctl.nodes.health.node_state import NodeProcess
from opsctl.nodes.remote.fanout import Fanout, Local
from opsctl.settings.health import HealthSettings
from opsctl.settings.thresholds import DEFAULTS
from tests.support.made_nodes import make_snapshot, read_corpus, render_smi

ROOT = Path(__file__).parents[4]
PYTHON = os.path.realpath(sys.executable)
SCRIPTS = ROOT / "templates" / "health"
LOST = f"#!/bin/sh\ncat <<'END'\n{read_corpus('nvidia-smi/errors/gpu-is-lost.txt')}\nEND\nexit 15\n"
NHC_LINE = re.compile(r"ERROR:  \w+:  Health check failed:  \w+:  .+")


def write_tool(place: Path, name: str, text: str) -> Path:
    tool = place / "bin" / name
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(text)
    tool.chmod(0o755)
    return tool.parent


def run_module(*arguments: str, path: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the module with an interpreter that sees no package at all."""
    return subprocess.run(
        [PYTHON, "-P", "-S", "-B", "-m", "opsctl.nodes.health.node_local", "--timeout", "60", *arguments],
        env={"PYTHONPATH": str(ROOT), "PATH": f"{path}:/usr/bin:/bin" if path else "/usr/bin:/bin", **env},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_lost_gpu_fails_like_a_check_of_nhc(tmp_path: Path) -> None:
    done = run_module(path=write_tool(tmp_path, "nvidia-smi", LOST))
    assert (done.returncode, done.stderr) == (1, "")
    assert NHC_LINE.fullmatch(done.stdout.splitlines()[0])
    assert "gpus:  nvidia-smi exit code 15: a GPU has fallen off the bus" in done.stdout


def test_hanging_tool_is_unknown_and_no_failure(tmp_path: Path) -> None:
    done = run_module("--timeout", "1", path=write_tool(tmp_path, "nvidia-smi", "#!/bin/sh\nexec sleep 3000\n"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "neither healthy nor bad" in done.stderr


def test_checks_import_the_standard_library_only() -> None:
    code = "import sys; import opsctl.nodes.health.node_local; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [PYTHON, "-P", "-S", "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) - set(sys.stdlib_module_names) <= {"opsctl", "__main__", "__mp_main__"}


@pytest.mark.parametrize(("option", "code"), [((), 1), (("--only-faulty",), 0)])
def test_degraded_node_fails_unless_only_faults_count(tmp_path: Path, option: tuple[str, ...], code: int) -> None:
    tool = write_tool(tmp_path, "nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{render_smi(pending='Yes')}\nEND\n")
    assert run_module(*option, path=tool).returncode == code


def test_settings_of_the_site_apply(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('root = "/scratch"\n[health]\nmemory_gib = 1000000\ndrain_max = 3\nmounts = ["/"]\n')
    assert read_thresholds(site) == HealthSettings(memory_gib=1000000.0, mounts=("/",)).thresholds
    done = run_module("--settings", str(site))
    assert (done.returncode, ":  memory:  " in done.stdout) == (1, True)


@pytest.mark.parametrize("text", ["[health]\nmemory_gib = 'much'\n", "[health]\nmounts = 3\n", "[health\n", None])
def test_wrong_settings_are_no_evidence(tmp_path: Path, text: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.toml"
    if text is not None:
        site.write_text(text)
    assert main(["--settings", str(site)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.startswith("opsctl: ")) == ("", True)


def test_every_threshold_is_a_setting_of_the_site() -> None:
    assert HealthSettings().thresholds == DEFAULTS


def test_touched_file_clears_old_kernel_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    slow = ["--timeout", "60", "--cleared", str(tmp_path / "cleared")]
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    line = f"[{max(uptime - 60, 0):.6f}] NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus."
    monkeypatch.setenv("PATH", f"{write_tool(tmp_path, 'dmesg', f'#!/bin/sh{chr(10)}echo {line!r}')}:/usr/bin:/bin")
    cleared = tmp_path / "cleared"
    assert main(slow) == 1
    assert ":  xid:  Xid 79" in capsys.readouterr().out
    cleared.touch()
    assert main(slow) == 0
    before = (datetime.now(UTC) - timedelta(hours=1)).timestamp()
    os.utime(cleared, (before, before))
    assert main(slow) == 1


def test_command_checks_this_machine() -> None:
    done = CliRunner().invoke(cli, ["health", "--node-local", "--json"])
    verdict = json.loads(done.stdout)
    assert (done.exit_code, verdict["by"]) == (0, "local")
    assert verdict["health"] in {"healthy", "unknown"}
    named = CliRunner().invoke(cli, ["health", "node001", "--node-local"])
    assert (named.exit_code, "name no nodes" in named.stderr) == (2, True)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The scripts as an administrator installs them, with a node-local.conf of this test."""
    place = tmp_path / "slurm"
    shutil.copytree(SCRIPTS, place)
    log = write_tool(tmp_path, "logger", f"#!/bin/sh\ncat >>{tmp_path}/log\n").parent
    write_tool(tmp_path, "nvidia-smi", LOST)
    (place / "node-local.conf").write_text(
        f"OPSCTL_PATH={ROOT}\nOPSCTL_PYTHON={PYTHON}\nPATH={log}/bin:$PATH\n"
        f"OPSCTL_SITE=/none\nOPSCTL_CLEARED={tmp_path}/cleared\nOPSCTL_OPTIONS='--timeout 60'\n"
    )
    return place


@pytest.mark.parametrize("name", ["prolog.sh", "epilog.sh"])
def test_script_fails_on_evidence_alone(installed: Path, name: str) -> None:
    """Slurm starts these programs without PATH."""
    failing = subprocess.run([installed / name], env={}, capture_output=True, text=True, check=False)
    assert failing.returncode == 1, failing
    with (installed / "node-local.conf").open("a") as file:
        file.write("OPSCTL_PYTHON=/bin/false\n")
    unchecked = subprocess.run([installed / name], env={}, capture_output=True, text=True, check=False)
    assert (unchecked.returncode, "was not checked" in unchecked.stderr) == (0, True)


def test_health_check_program_drains_with_the_evidence(installed: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    show, log = "echo 'NodeName=n1 Arch=x86_64 State=IDLE ThreadsPerCore=1'", f'echo "$*" >>{calls}'
    text = f'#!/bin/sh\ncase "$*" in *show*) {show} ;; *) {log} ;; esac\n'
    scontrol = write_tool(tmp_path, "scontrol", text)
    program = installed / "health-check-program.sh"
    program.write_text(program.read_text().replace("PATH=/usr/local/bin", f"PATH={scontrol}:/usr/local/bin"))
    subprocess.run([program], env={"SLURMD_NODENAME": "n1"}, check=True)
    reason = "node-local: gpus:  nvidia-smi exit code 15"
    assert calls.read_text().startswith(f"update NodeName=n1 State=DRAIN Reason={reason}")
    write_tool(tmp_path, "scontrol", text.replace("State=IDLE", "State=IDLE+DRAIN"))
    subprocess.run([program], env={"SLURMD_NODENAME": "n1"}, check=True)
    assert len(calls.read_text().splitlines()) == 1


def test_nhc_dies_with_the_evidence(installed: Path) -> None:
    """NHC sources the file and calls the function, which reports by NHC's function `die`."""
    die = 'die() { shift; echo "Health check failed:  $*"; }'
    nhc = f"{die}; . {installed}/opsctl.nhc; check_opsctl || echo failed"
    done = subprocess.run(
        ["bash", "-c", nhc],
        env={"OPSCTL_NODE_LOCAL": str(installed / "node-local.sh")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[0].startswith("Health check failed:  check_opsctl:  gpus:  nvidia-smi exit code 15")
    assert done.stdout.endswith("failed\n")


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
