"""A DeepSpeed train over several tasks on a real Slurm, run by the commands that a user types."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.host.system import SystemClock
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.state.events import AttemptFinalized
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from tests.support.cases import read_table

pytest.importorskip("deepspeed", reason="needs the trainer extra")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

TRAIN = read_table(__file__, "train")


class Site:
    """A directory with a site file and a corpus, and the commands."""

    def __init__(self, place: Path, sandbox: Sandbox) -> None:
        self.place = place
        (place / "site.toml").write_text(f'root = "{place}/trains"\ntrust_parents = true\n')
        self.env = {**os.environ, **sandbox.env(), "OPSCTL_SITE": str(place / "site.toml")}
        text = place / "text.txt"
        text.write_text("".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))))
        self.run(
            [sys.executable, "-m", "opsctl.trainer.prepare", "--input", str(text), "--output", str(place / "corpus")]
        )

    def run(self, argv: list[str]) -> str:
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, check=False, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def opsctl(self, *words: str) -> str:
        return self.run([sys.executable, "-m", "opsctl", *words])

    def run_in_process(self, *words: str) -> None:
        """Run a command in this process, as a train of thirty steps is over before a second Python has started."""
        done = CliRunner().invoke(cli, words, env=self.env, standalone_mode=False)
        assert done.exception is None, done.output

    def launch(self, name: str) -> RunDir:
        config = self.place / f"{name}.toml"
        config.write_text(TRAIN.format(name=name, corpus=self.place / "corpus"))
        self.opsctl("launch", str(config))
        return RunDir(self.place / "trains" / name)

    def status(self, name: str) -> dict:
        return json.loads(self.opsctl("status", name, "--json"))[0]

    def until(self, name: str, holds: Callable[[dict], bool], seconds: float = 400) -> dict:
        limit = time.monotonic() + seconds
        status = self.status(name)
        while not holds(status):
            assert time.monotonic() < limit, status
            assert status["state"] not in {"ended", "finished"}, status
            time.sleep(0.3)
            status = self.status(name)
        return status


def read_losses(run: RunDir) -> dict[int, list[str]]:
    """Return the logged losses of each step, as text."""
    logged_losses: dict[int, list[str]] = {}
    log = run.main_log.read_text() if run.main_log.exists() else ""
    for step, loss in re.findall(r"iteration +(\d+)/.*? lm loss: (\S+)", log):
        logged_losses.setdefault(int(step), []).append(loss)
    return logged_losses


def read_outcomes(run: RunDir) -> list[tuple[str, str]]:
    events = Journal(run, SystemClock()).events()
    return [(e.attempt, e.outcome) for e in events if isinstance(e, AttemptFinalized)]


def wait_for_step(run: RunDir, step: int) -> None:
    limit = time.monotonic() + 250
    while max(read_losses(run), default=0) < step:
        assert time.monotonic() < limit, run.main_log.read_text()
        time.sleep(0.05)


@pytest.mark.long
def test_train_with_a_killed_node_ends_like_a_calm_one(tmp_path: Path, fresh_slurm: Callable[..., Sandbox]) -> None:
    slurm = fresh_slurm(nodes=5, gpus_per_node=0)
    site = Site(tmp_path, slurm)
    calm = site.launch("calm")
    site.until("calm", lambda status: status["state"] == "finished")

    rough = site.launch("rough")
    wait_for_step(rough, 6)
    site.run_in_process("kill-switch", "arm", "rough", "--pause", "--reason", "first end")
    site.until("rough", lambda status: status["state"] == "held")
    paused_at = max(read_losses(rough))
    site.opsctl("release", "rough")
    node = site.until("rough", lambda status: bool(status["running"]))["running"][0]["nodes"]
    wait_for_step(rough, paused_at + 6)
    slurm.fault(node.replace("[", "").partition("-")[0], FaultKind.CRASH)
    site.until("rough", lambda status: status["state"] == "finished")

    undisturbed = {step: logged[0] for step, logged in read_losses(calm).items()}
    assert set(undisturbed) == set(range(1, 31))
    assert {step: set(logged) for step, logged in read_losses(rough).items()} == {
        step: {loss} for step, loss in undisturbed.items()
    }
    limit = time.monotonic() + 250
    while len(read_outcomes(rough)) < 3:  # the job of the dead node completes only after Slurm has waited for the node
        assert time.monotonic() < limit, read_outcomes(rough)
        site.opsctl("watch", "--once")
    first, second, third = sorted(read_outcomes(rough))
    assert first[1] == "paused"
    assert second[1] in {"node-failed", "lost"}
    assert third[1] == "finished"
    assert site.status("rough")["waiting"] == []

    report = json.loads(site.opsctl("report", "rough", "--json"))
    spent = report["buckets"]
    assert sum(spent.values()) == pytest.approx(report["wall_s"])
    assert [attempt["outcome"] for attempt in report["attempts"]] == [first[1], second[1], third[1]]
    assert report["attempts"][0]["first_step"] == 1
    assert min(spent[name] for name in ("training", "start-up", "held", "hang until noticed")) > 0, spent
    # No step is repeated if the node died just after a save.
    repeated_steps = [step for step, logged in read_losses(rough).items() if len(logged) > 1]
    assert (spent["done twice"] > 0) == bool(repeated_steps), (spent, repeated_steps)
    assert spent["unknown"] < 0.1 * report["wall_s"], spent
    assert 0 < report["ettr"] < report["ettr_without_queue"] < 1
