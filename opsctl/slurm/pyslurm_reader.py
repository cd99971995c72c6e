"""Choose the reader of Slurm: pyslurm or the commands.

Where pyslurm is installed and built for the running Slurm, it answers the two most frequent queries (jobs and nodes)
without starting a program. All other queries, and all other machines, use the commands.
"""

import importlib
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from opsctl.base.capabilities import parse_version
from opsctl.base.errors import OpsctlError, Unreachable
from opsctl.base.model import Job, Node
from opsctl.base.ports import Runner, TimedOut
from opsctl.slurm.commands import Slurm
from opsctl.slurm.field_values import parse_node_reason, parse_state, parse_tasks, parse_text, parse_time
from opsctl.slurm.slurm_errors import HINT

UNKNOWN_VERSION = "of unknown version"


def choose(runner: Runner) -> tuple[Slurm, str]:
    """Return the reader for the Slurm that `runner` reaches, and the reason for the choice."""
    pyslurm, why = find(runner)
    if pyslurm is None:
        return Slurm(runner), f"Slurm's commands: {why}"
    return Library(runner, pyslurm=pyslurm), why


def find(runner: Runner) -> tuple[Any, str]:
    """Return pyslurm if usable, and the reason for the choice.

    pyslurm is imported only if its version fits: importing pyslurm ends the process if its set-up fails.
    """
    if find_spec("pyslurm") is None:
        return None, "pyslurm is not installed"
    from importlib import metadata  # noqa: PLC0415 (slow import)

    try:
        built_for = metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return None, "pyslurm is not installed"
    if getattr(runner, "env", None):  # pyslurm would use the Slurm of this process's own environment
        return None, "this Slurm is reached through an environment of its own"
    running = read_version(runner)
    if parse_version(running) is None or parse_version(built_for) != parse_version(running):
        return None, f"pyslurm {built_for} is not for Slurm {running}"
    try:
        return importlib.import_module("pyslurm"), f"pyslurm {built_for}"
    except (ImportError, OSError) as error:
        return None, f"pyslurm {built_for} does not load: {error}"


def read_version(runner: Runner) -> str:
    """Return the version of Slurm's commands, such as 22.05.8. The commands print it without a controller."""
    try:
        words = runner.run(("squeue", "--version"), timeout=5).out.split()
    except (OpsctlError, TimedOut):
        return UNKNOWN_VERSION
    return words[-1] if words else UNKNOWN_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Library(Slurm):
    """Slurm's commands, except `jobs` and `nodes`, which use pyslurm."""

    pyslurm: Any

    def jobs(self) -> list[Job]:
        return [convert_job(row) for row in self._load("Jobs")]

    def nodes(self) -> list[Node]:
        return [
            Node(
                name=row.name,
                state=row.state,
                address=row.address or "",
                reason=parse_node_reason(row.state, row.reason or ""),
            )
            for row in self._load("Nodes")
        ]

    def _load(self, collection: str) -> list[Any]:
        try:
            return list(getattr(self.pyslurm, collection).load().values())
        except self.pyslurm.RPCError as error:
            raise Unreachable(f"pyslurm got no answer: {error}", hint=HINT) from error


def convert_job(row: Any) -> Job:
    """Convert a `pyslurm.Job`, whose array_task_id is None both for array task 0 and for a plain job."""
    tasks = parse_tasks(row.array_tasks_waiting or "")
    if not tasks and row.array_id:
        tasks = (row.array_task_id or 0,)
    return Job(
        id=str(row.id),
        array=str(row.array_id or row.id),
        tasks=tasks,
        name=row.name or "",
        user=row.user_name or "",
        state=parse_state(row.state or ""),
        reason=parse_text(row.state_reason or ""),
        nodes=row.allocated_nodes or "",
        node_count=row.num_nodes or 0,
        partition=row.partition or "",
        comment=row.comment or "",
        start=parse_time(str(row.start_time)),
        end=parse_time(str(row.end_time)),
        submitted=parse_time(str(row.submit_time)),
        accrued=parse_time(str(row.accrue_time)),
        exit_code=f"{row.exit_code or 0}:{row.exit_code_signal or 0}",
        restarts=row.requeue_count or 0,
    )
