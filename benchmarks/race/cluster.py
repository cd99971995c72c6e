"""The private Slurm that a contender races on, asked in its own words."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from datetime import datetime

OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job or array task as squeue has it; times in seconds since the epoch, 0 for none."""

    job: str
    raw: str
    """The number that the job itself sees, which an array task has too."""
    state: str
    reason: str
    start: float
    end: float

    @property
    def is_over(self) -> bool:
        return self.state in OVER


def slurm(*argv: str) -> str:
    """What a Slurm command prints. Raises CalledProcessError."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def queue(name: str = "race") -> list[Row]:
    """The jobs of this name, those that ended lately among them."""
    text = slurm("squeue", "--noheader", "--array", "--states=all", f"--name={name}", "--format=%i|%A|%T|%S|%e|%r")
    return [read(line.split("|")) for line in text.splitlines()]


def read(words: list[str]) -> Row:
    job, raw, state, start, end, reason = words
    return Row(job=job, raw=raw, state=state, reason=reason, start=seconds(start), end=seconds(end))


def seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return 0.0
