"""The main job: a DeepSpeed train over several tasks on a real Slurm, by the verbs that a user types."""

from __future__ import annotations

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
from opsctl.state.journal import EventKind, Journal
from opsctl.state.run_dir import RunDir

pytest.importorskip("deepspeed", reason="needs the trainer extra")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]

TRAIN = """
name = "{name}"
[slurm]
nodes = 2
processes_per_node = 1
time_limit = "30"
tasks = 4
signal_seconds = 0
[environment]
OMP_NUM_THREADS = "1"
[guard]
poll_seconds = 0.2
short_attempt_minutes = 0.01
[trainer]
steps = 30
seed = 7
precision = "fp32"
threads = 1
[trainer.model]
layers = 2
hidden = 96
sequence = 128
dropout = 0.1
[trainer.data]
prefix = "{corpus}"
[trainer.parallel]
pipeline = 2
[trainer.batch]
micro_batch = 2
global_batch = 24
[trainer.checkpoint]
every = 4
"""


class Site:
    """A directory with a site file and a corpus, and the verbs."""

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

    def at_once(self, *words: str) -> None:
        """In this process: a train of thirty steps does not wait for another Python to start."""
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
        while not holds(seen := self.status(name)):
            assert time.monotonic() < limit, seen
            assert seen["state"] not in {"ended", "finished"}, seen
            time.sleep(0.3)
        return seen


def losses(run: RunDir) -> dict[int, list[str]]:
    """Every loss that was logged for each step, digit for digit."""
    found: dict[int, list[str]] = {}
    log = run.main_log.read_text() if run.main_log.exists() else ""
    for step, loss in re.findall(r"iteration +(\d+)/.*? lm loss: (\S+)", log):
        found.setdefault(int(step), []).append(loss)
    return found


def finalized(run: RunDir) -> list[tuple[str, str]]:
    events = Journal(run, SystemClock()).events()
    return [(e.data["attempt"], e.data["outcome"]) for e in events if e.kind is EventKind.ATTEMPT_FINALIZED]


def wait_for_step(run: RunDir, step: int) -> None:
    limit = time.monotonic() + 250
    while max(losses(run), default=0) < step:
        assert time.monotonic() < limit, run.main_log.read_text()
        time.sleep(0.05)


def test_a_train_over_three_tasks_with_a_node_killed_ends_as_if_nothing_had_happened(
    tmp_path: Path, fresh_slurm: Callable[..., Sandbox]
) -> None:
    slurm = fresh_slurm(nodes=5, gpus_per_node=0)
    site = Site(tmp_path, slurm)
    calm = site.launch("calm")
    site.until("calm", lambda seen: seen["state"] == "finished")

    rough = site.launch("rough")
    wait_for_step(rough, 6)
    site.at_once("kill-switch", "arm", "rough", "--pause", "--reason", "first end")
    site.until("rough", lambda seen: seen["state"] == "held")
    paused_at = max(losses(rough))
    site.opsctl("release", "rough")
    node = site.until("rough", lambda seen: bool(seen["running"]))["running"][0]["nodes"]
    wait_for_step(rough, paused_at + 6)
    slurm.fault(node.replace("[", "").partition("-")[0], FaultKind.CRASH)
    site.until("rough", lambda seen: seen["state"] == "finished")

    undisturbed = {step: logged[0] for step, logged in losses(calm).items()}
    assert set(undisturbed) == set(range(1, 31))
    assert {step: set(logged) for step, logged in losses(rough).items()} == {
        step: {loss} for step, loss in undisturbed.items()
    }
    limit = time.monotonic() + 250
    while len(finalized(rough)) < 3:  # the dead node's job is being completed for as long as Slurm waits for the node
        assert time.monotonic() < limit, finalized(rough)
        site.opsctl("watch", "--once")
    first, second, third = sorted(finalized(rough))
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
    again = [step for step, logged in losses(rough).items() if len(logged) > 1]  # unless it died just after a save
    assert (spent["done twice"] > 0) == bool(again), (spent, again)
    assert spent["unknown"] < 0.1 * report["wall_s"], spent
    assert 0 < report["ettr"] < report["ettr_without_queue"] < 1
