"""A run directory with published and private files, real programs and a real bare repository."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opsctl.base.secret_formats import Secrets
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.publish.publisher import Published, Publisher
from opsctl.publish.staging import TimeLimit
from opsctl.settings.publish import PublishTable
from opsctl.state.run_dir import RunDir

EVENTS = b"\x18\0\0\0\0\0\0\0\xa3\x7f" + bytes(range(256)) * 20
"""Binary data as in a TensorBoard file."""


@dataclass
class Site:
    path: Path
    known: frozenset[bytes] = frozenset({b"open sesame"})
    report: str = "# gpt: 97 % effective\n"
    clock: Any = field(default_factory=SystemClock)
    runner: Any = field(default_factory=SystemRunner)

    def __post_init__(self) -> None:
        self.run = RunDir(self.path / "trains" / "gpt")
        self.run.create()
        self.run.config.write_text('name = "gpt"\n')
        self.write("logs/main_log.txt", "iteration 1/ 9 |\niteration 2/ 9 |\n")
        self.write("logs/pulse.log", "all is well\n")
        self.write("metrics/metrics.jsonl", '{"step": 1}\n')
        self.write("metrics/tensorboard/events.out.tfevents.1", EVENTS)
        self.write("checkpoints/step-0000100/COMPLETE", "x")
        self.write("checkpoints/step-0000100/model.pt", b"weights")

    def write(self, name: str, data: str | bytes) -> Path:
        path = self.run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    def publisher(self, seconds: float = 60, **table: Any) -> Publisher:
        settings = PublishTable.model_validate({"to": "path", "path": str(self.path / "out"), **table})
        return Publisher(
            run=self.run,
            table=settings,
            root=self.run.path.parent,
            secrets=Secrets(self.known),
            reports=lambda: {
                "report.md": self.report,
                "report.html": f"<h1>{self.report}",
                "dash.html": f"<h2>{self.report}",
            },
            runner=self.runner,
            clock=self.clock,
            deadline=TimeLimit.within(self.clock, seconds),
        )

    def publish(self, **table: Any) -> Published:
        return self.publisher(**table).publish()

    def out(self) -> dict[str, bytes]:
        return contents(self.path / "out" / "gpt")


def contents(directory: Path) -> dict[str, bytes]:
    """Return every file below `directory`, hidden files included."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def git(*words: object) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    return subprocess.run(["git", *map(str, words)], check=True, capture_output=True, text=True, env=env).stdout


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
