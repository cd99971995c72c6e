"""Which reader of Slurm to take. pyslurm, where it is installed and made for the Slurm that runs, answers the two
questions that are asked all the time without starting a program; for all the rest, and everywhere else, the commands.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from opsctl.capabilities import parse_version
from opsctl.errors import OpsctlError, Unreachable
from opsctl.model import Job, Node
from opsctl.ports import Runner, Scheduler, TimedOut
from opsctl.scheduler.field_values import tasks_of, text_of, time_of
from opsctl.scheduler.slurm import Slurm
from opsctl.scheduler.slurm_errors import HINT
from opsctl.scheduler.states import parse_state


def choose(runner: Runner) -> tuple[Scheduler, str]:
    """The reader for the Slurm that `runner` reaches, and why it is that one."""
    pyslurm, why = find(runner)
    return (Slurm(runner), f"Slurm's commands: {why}") if pyslurm is None else (Library(runner, pyslurm=pyslurm), why)


def find(runner: Runner) -> tuple[Any, str]:
    """pyslurm if it is to be used, and why it is or is not. It is loaded only if it fits: it ends the process if it
    cannot set itself up."""
    try:
        made_for = metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return None, "pyslurm is not installed"
    if getattr(runner, "env", None):  # pyslurm would ask the Slurm of this process's own environment
        return None, "this Slurm is reached through an environment of its own"
    running = version(runner)
    if parse_version(running) is None or parse_version(made_for) != parse_version(running):
        return None, f"pyslurm {made_for} is not for Slurm {running}"
    try:
        return importlib.import_module("pyslurm"), f"pyslurm {made_for}"
    except (ImportError, OSError) as error:
        return None, f"pyslurm {made_for} does not load: {error}"


def version(runner: Runner) -> str:
    """The version of Slurm's commands, such as 22.05.8, which they know without a controller."""
    try:
        lines = runner.run(("squeue", "--version"), timeout=5).out.split()
    except (OpsctlError, TimedOut):
        return "of unknown version"
    return lines[-1] if lines else "of unknown version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library(Slurm):
    """The commands, but for `jobs` and `nodes`, which come through pyslurm."""

    pyslurm: Any

    def jobs(self) -> list[Job]:
        return [job_of(row) for row in self._load("Jobs")]

    def nodes(self) -> list[Node]:
        return [
            Node(name=row.name, state=row.state, address=row.address or "", reason=row.reason or "")
            for row in self._load("Nodes")
        ]

    def _load(self, what: str) -> list[Any]:
        try:
            return list(getattr(self.pyslurm, what).load().values())
        except self.pyslurm.RPCError as error:
            raise Unreachable(f"pyslurm got no answer: {error}", hint=HINT) from error


def job_of(row: Any) -> Job:
    """One `pyslurm.Job`. It has None for array task 0, as for a plain job."""
    tasks = tasks_of(row.array_tasks_waiting or "") or ((row.array_task_id or 0,) if row.array_id else ())
    times = {name: time_of(str(getattr(row, f"{name}_time"))) for name in ("start", "end", "submit", "accrue")}
    return Job(
        id=str(row.id), array=str(row.array_id or row.id), tasks=tasks, name=row.name or "", user=row.user_name or "",
        state=parse_state(row.state or ""), reason=text_of(row.state_reason or ""), nodes=row.allocated_nodes or "",
        node_count=row.num_nodes or 0, partition=row.partition or "", comment=row.comment or "",
        start=times["start"], end=times["end"], submitted=times["submit"], accrued=times["accrue"],
        exit_code=f"{row.exit_code or 0}:{row.exit_code_signal or 0}", restarts=row.requeue_count or 0,
    )  # fmt: skip
