"""Trains in containers of pyxis, on a real slurmctld whose SPANK plugin has the options of pyxis.

NVIDIA's plugin and enroot are not in the archives of the distributions. The plugin in tests/support/fake_pyxis.c mounts
and changes the root as pyxis does; how enroot unpacks images is not tested.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.sandbox.cluster import Sandbox
from tests.support.containers import MARKER, build_fake_pyxis, unpack_root
from tests.support.slurms import run_slurm
from tests.support.trains import Trains, trains_on, until

SHELL = f"""
import os, sys, time
shim = "/opt/opsctl-rank-wrapper/opsctl/__init__.py"
try:
    open(shim, "a")
except OSError as error:
    print("shim:", error.strerror)
print("rank", os.environ["RANK"], "inside", os.path.exists("/{MARKER}"), "at", os.getcwd(), flush=True)
open(os.environ["TRAIN_CHECKPOINT_DIR"] + "/saved", "w").close()
time.sleep(1)  # the other rank prints as well
sys.exit(9)
"""


@pytest.fixture
def trains(fresh_slurm: Callable[..., Sandbox], tmp_path: Path) -> Iterator[Trains]:
    tmp_path.chmod(0o755)
    plugstack = build_fake_pyxis(tmp_path)
    sandbox = fresh_slurm(nodes=2)
    conf = Path(sandbox.env()["SLURM_CONF"])
    conf.write_text(conf.read_text().replace("PlugStackConfig=/dev/null", f"PlugStackConfig={plugstack}"))
    run_slurm(sandbox, "scontrol", "reconfigure")
    with trains_on(sandbox) as trains:
        yield trains


@pytest.mark.root
def test_ranks_run_in_the_container(trains: Trains, tmp_path: Path) -> None:
    code = trains.place / "code"
    code.mkdir()
    (code / "train.py").write_text(SHELL)
    root = unpack_root(tmp_path)
    more = f"[setup]\ndirectory = '{code}'\n[container]\nruntime = 'pyxis'\nimage = '{root}'"
    path = trains.toml(command=("python3", "train.py"), more=more, nodes=2, tasks=1, extra=())
    findings = json.loads(trains.opsctl("preflight", path, "--json"))["findings"]
    assert [finding for finding in findings if finding["check"] == "container"] == []
    trains.opsctl("launch", path)
    until(lambda: not trains.rows())
    log = trains.run().main_log.read_text()
    lines = sorted(line for line in log.splitlines() if "inside" in line or "shim" in line)
    assert lines == [
        f"[node001:0]: rank 0 inside True at {code}",
        "[node001:0]: shim: Read-only file system",
        f"[node002:1]: rank 1 inside True at {code}",
        "[node002:1]: shim: Read-only file system",
    ], log
    (attempt,) = trains.run().attempts()
    assert attempt.body_exit.read_text() == "9\n"
    assert (trains.run().checkpoints / "saved").exists()
