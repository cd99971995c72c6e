"""Without an Epilog, slurmctld waits for the answer of a dead node before it releases the healthy nodes of its job:
MessageTimeout, 10 s, as measured with Slurm 22.05.8."""

import json
import re
from pathlib import Path

from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from tests.support.slurms import Up, run_slurm, wait_until
from tests.support.trains import trains_on


def test_healthy_nodes_of_a_job_that_lost_one_are_free_at_once(fresh_slurm: Up, tmp_path: Path) -> None:
    sandbox = fresh_slurm(nodes=2)
    make_controller_patient(sandbox)
    until = f"until [ -e {tmp_path}/lost ]; do sleep 0.1; done"
    run_slurm(sandbox, "sbatch", "--nodes=2", "--output=/dev/null", f"--wrap=touch {tmp_path}/began; {until}")
    wait_until((tmp_path / "began").exists)
    sandbox.fault("node002", FaultKind.CRASH)
    (tmp_path / "lost").touch()
    wait_until(lambda: "comp" in list_states(sandbox)["node002"])
    wait_until(lambda: list_states(sandbox)["node001"] == "idle")


def make_controller_patient(sandbox: Sandbox) -> None:
    """Let the controller wait for a dead node's answer longer than the test waits."""
    conf = Path(sandbox.conf)
    conf.write_text(re.sub(r"(MessageTimeout|SlurmdTimeout|UnkillableStepTimeout)=.*", r"\1=1000", conf.read_text()))
    run_slurm(sandbox, "scontrol", "reconfigure")


def list_states(sandbox: Sandbox) -> dict[str, str]:
    lines = run_slurm(sandbox, "sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t").splitlines()
    return dict(line.split() for line in lines)


def test_doctor_says_what_a_slurm_without_epilog_does(fresh_slurm: Up) -> None:
    sandbox = fresh_slurm(nodes=1)
    with trains_on(sandbox) as trains:

        def find_rows() -> list[dict[str, str]]:
            return [row for row in json.loads(trains.opsctl("doctor", "--json")) if row["check"] == "epilog"]

        assert not find_rows()
        conf = Path(sandbox.conf)
        conf.write_text(conf.read_text().replace("Epilog=/bin/true\n", ""))
        run_slurm(sandbox, "scontrol", "reconfigure")
        wait_until(find_rows)
        [row] = find_rows()
        assert row["severity"] == "optional"
        assert "MessageTimeout" in row["result"]
