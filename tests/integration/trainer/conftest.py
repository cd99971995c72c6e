"""Real ranks: a run directory, a launcher in its own process, and their results."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from opsctl.trainer.contract import Env, Heartbeat, StopReason, read_heartbeat, read_stop_reason
from tests.support.prepared import ROOT, server

LAUNCH = Path(__file__).parents[2] / "support" / "launch_ranks.py"
SWITCHES = {"kill": Env.KILL_SWITCH, "pause": Env.PAUSE_SWITCH, "save": Env.SAVE_SWITCH, "stop": Env.STOP_REQUEST}


class Attempt:
    """One attempt of a train: its launcher, its ranks, its log."""

    def __init__(self, run_dir: Path, world: int, number: int) -> None:
        self.run_dir, self.log_path = run_dir, run_dir / f"log.{number}"
        for name in ("pids.json", "codes.json", "stop.json"):
            (run_dir / name).unlink(missing_ok=True)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("TRAIN_", "SLURM_"))}
        env |= {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            Env.RUN_DIR: str(run_dir),
            Env.ATTEMPT: f"7_{number}.0",
            Env.CHECKPOINT_DIR: str(run_dir / "checkpoints"),
            Env.HEARTBEAT_DIR: str(run_dir / "heartbeat"),
            Env.STEP_TIMES_DIR: str(run_dir / "step-times"),
            Env.STOP_REASON: str(run_dir / "stop.json"),
            Env.DEADLINE: str(run_dir / "deadline"),
            Env.STACKS_REQUEST: str(run_dir / "stacks-request"),
            **{variable: str(run_dir / name) for name, variable in SWITCHES.items()},
        }
        self.log_path.write_text("")
        self.launcher = server().start(str(LAUNCH), [str(run_dir), str(world)], env=env, cwd=run_dir, log=self.log_path)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def losses(self) -> dict[int, str]:
        """The logged loss of each step, as text."""
        return {int(step): loss for step, loss in re.findall(r"iteration +(\d+)/.*? lm loss: (\S+)", self.log)}

    @property
    def pids(self) -> list[int]:
        self.wait_for((self.run_dir / "pids.json").exists, "the ranks to start")
        return json.loads((self.run_dir / "pids.json").read_text())

    @property
    def codes(self) -> list[int]:
        """The exit code of each rank."""
        return json.loads((self.run_dir / "codes.json").read_text())

    @property
    def stop_reason(self) -> StopReason | None:
        return read_stop_reason(self.run_dir / "stop.json")

    def heartbeat(self, name: str) -> Heartbeat:
        heartbeat = read_heartbeat(self.run_dir / "heartbeat" / f"{name}.json")
        assert heartbeat is not None
        return heartbeat

    def wait_for(self, condition, event: str, *, timeout: float = 300) -> None:
        end = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < end, f"waited {timeout} s for {event}; the log:\n{self.log}"
            assert self.launcher.poll() is None or condition(), f"ended before {event}; the log:\n{self.log}"
            time.sleep(0.02)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: max(self.losses, default=0) >= step, f"step {step}")

    def finish(self, *, timeout: float = 400) -> list[int]:
        """Wait until all ranks have ended and return their exit codes."""
        try:
            self.launcher.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout} s; the log:\n{self.log}")
        return self.codes

    def wait_until_gone(self, pids: list[int], *, timeout: float = 100) -> None:
        """Wait until all processes of `pids` have ended. Zombies count as ended."""
        end = time.monotonic() + timeout
        while alive := [pid for pid in pids if _is_alive(pid)]:
            assert time.monotonic() < end, f"ranks {alive} are alive after {timeout} s; the log:\n{self.log}"
            time.sleep(0.02)

    def end(self) -> None:
        """Kill the launcher and the remaining ranks."""
        self.launcher.kill()
        self.launcher.wait()
        with contextlib.suppress(FileNotFoundError):
            for pid in json.loads((self.run_dir / "pids.json").read_text()):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if Path(f"/proc/{pid}/cwd").resolve() == self.run_dir.resolve():  # process ids are reused
                        os.kill(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


class Train:
    """A run directory with a config, and its attempts."""

    def __init__(self, run_dir: Path, corpus: Path, **config) -> None:
        self.run_dir, self.attempts = run_dir, []
        (run_dir / "heartbeat").mkdir(parents=True)
        self.config = {**config, "data": {"prefix": str(corpus)}}

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    def start(self, world: int = 4) -> Attempt:
        (self.run_dir / "trainer.json").write_text(json.dumps(self.config))
        self.attempts.append(Attempt(self.run_dir, world, len(self.attempts)))
        return self.attempts[-1]

    def adopt(self, other: "Train") -> None:
        """Copy the checkpoints of another train."""
        shutil.copytree(other.checkpoints, self.checkpoints)

    def arm(self, switch: str) -> Path:
        path = self.run_dir / switch
        path.touch()
        return path

    def end(self) -> None:
        for attempt in self.attempts:
            attempt.end()


def tiny(**changes) -> dict:
    """Return a config whose steps take hundredths of a second on two stages."""
    config = {
        "steps": 20,
        "seed": 1234,
        "precision": "fp32",
        "threads": 1,
        "model": {"layers": 2, "hidden": 32, "heads": 2, "sequence": 32, "dropout": 0.1},
        "parallel": {"pipeline": 2},
        "checkpoint": {"every": 10},
        "log": {"heartbeat_s": 0.1},
    }
    return config | changes


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A corpus of the trainer's source code, with one token per byte."""
    pytest.importorskip("numpy")
    from opsctl.trainer.prepare import main  # noqa: PLC0415 - numpy may be absent

    prefix = tmp_path_factory.mktemp("corpus") / "trainer"
    main(["--input", str(ROOT / "trainer"), "--suffix", ".py", "--output", str(prefix)])
    return prefix


@pytest.fixture(scope="session")
def trains(tmp_path_factory, corpus):
    """A function that makes trains, whose processes end with the session."""
    made: list[Train] = []

    def make(**config) -> Train:
        made.append(Train(tmp_path_factory.mktemp("train") / "run", corpus, **config))
        return made[-1]

    yield make
    for train in made:
        train.end()


@pytest.fixture
def train(trains):
    """A function that makes trains, whose processes end with the test."""
    made: list[Train] = []

    def make(**config) -> Train:
        made.append(trains(**config))
        return made[-1]

    yield make
    for run in made:
        run.end()


@pytest.fixture(scope="session")
def uninterrupted(trains) -> Train:
    """A train of twenty steps in one attempt, on two stages with two data-parallel ranks; checkpoints at 10 and 20."""
    run = trains(**tiny())
    assert run.start().finish() == [0, 0, 0, 0], run.attempts[0].log
    return run
