"""`opsctl nodes reboot` on a real Slurm, which only records the reboot for the time when the node is free."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opsctl.cli import cli
from opsctl.host.system import SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.slurm.commands import Slurm
from tests.support.slurms import run_slurm, wait_until


@pytest.fixture
def opsctl(fresh_slurm: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sandbox = fresh_slurm(nodes=2)
    for name, value in sandbox.env().items():
        monkeypatch.setenv(name, value)
    site = tmp_path / "site.toml"
    site.write_text(f'root = "{tmp_path}/trains"\ntrust_parents = true\n')

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, ["--site", str(site), "nodes", *words], standalone_mode=False)

    run.sandbox = sandbox
    return run


def state(sandbox: Sandbox, name: str) -> str:
    nodes = Slurm(SystemRunner(env=sandbox.env())).nodes()
    return next(node.state for node in nodes if node.name == name)


def test_reboot_without_reboot_program_changes_nothing(opsctl) -> None:
    done = opsctl("reboot", "node001")
    assert done.return_value == 1
    assert done.output.startswith("node001: not rebooted: scontrol refused: RebootProgram isn't defined")
    assert state(opsctl.sandbox, "node001") == "IDLE"


def test_busy_node_is_rebooted_later_within_the_cap(opsctl) -> None:
    with Path(os.environ["SLURM_CONF"]).open("a") as conf:
        conf.write("RebootProgram=/bin/true\n")
    run_slurm(opsctl.sandbox, "scontrol", "reconfigure")
    run_slurm(opsctl.sandbox, "sbatch", "--nodelist=node002", "--exclusive", "--wrap=sleep 1000", "--output=/dev/null")
    wait_until(lambda: state(opsctl.sandbox, "node002") == "ALLOCATED")
    assert (
        "node002: would reboot: opsctl: reboot: Xid 79"
        in opsctl("reboot", "node002", "--reason", "Xid 79", "--dry-run").output
    )
    assert state(opsctl.sandbox, "node002") == "ALLOCATED"
    assert opsctl("reboot", "node002", "--reason", "Xid 79").return_value == 0
    assert "REBOOT_REQUESTED" in state(opsctl.sandbox, "node002")
    again = opsctl("reboot", "node[001-002]")
    assert again.return_value == 1
    assert "leave node001: beyond the cap of 1 nodes" in again.output
    assert "leave node002: reboot already requested" in again.output
