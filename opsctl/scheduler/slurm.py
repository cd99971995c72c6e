"""Slurm through its own commands: an argument list, a timeout, a parser."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path

from opsctl.errors import InputError, Unreachable
from opsctl.model import Accounting, DrainReason, Job, LaunchPlan, Limits, Node, Partition, Reservation
from opsctl.ports import Completed, Runner, TimedOut
from opsctl.scheduler import accounting
from opsctl.scheduler.field_values import split_list
from opsctl.scheduler.parse_output import (
    END_FIELDS,
    KIND_FIELDS,
    REASON_FIELDS,
    SACCT_FIELDS,
    SINFO_FIELDS,
    SQUEUE_FIELDS,
    long_format,
    parse_end,
    parse_excluded,
    parse_jobs,
    parse_kinds,
    parse_limits,
    parse_nodes,
    parse_partitions,
    parse_past,
    parse_reasons,
    parse_reservations,
)
from opsctl.scheduler.slurm_errors import GONE, HINT, NOT_PENDING, UNKNOWN_ID, raise_for_error

TIMEOUT_S = 10.0
"""For one command. Slurm's programs give up on a slurmctld that is down after nine seconds."""
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
JOB_ID = re.compile(r"\d+(_(\d+|\[[\d,:-]+\]))?(\+\d+)?", re.ASCII)

FULL_LENGTH: dict[str, str | None] = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Print times in seconds since the epoch, which need no time zone, and lists of array tasks in full."""
FILTER_VARIABLES = {
    "squeue": "ACCOUNT ARRAY FEDERATION LICENSES NAMES PARTITION PRIORITY QOS SIBLING SORT USERS",
    "sinfo": "FEDERATION PARTITION SORT",
    "scancel": "ACCOUNT BATCH FULL HURRY INTERACTIVE NAME PARTITION QOS STATE USER WCKEY",
    "sbatch": "ARRAY_INX CLUSTERS JOB_NAME NO_REQUEUE OPEN_MODE OUTPUT REQUEUE TIMELIMIT WAIT",
}


def _unset_variables(program: str, names: str) -> dict[str, str | None]:
    return {f"{program.upper()}_{name}": None for name in names.split()}


NO_FILTER = {program: _unset_variables(program, names) for program, names in FILTER_VARIABLES.items()}
"""Variables that a user may have set for typing commands by hand. Even empty, SQUEUE_USERS hides every job."""
SBATCH_VARIABLES = {
    "partition": "PARTITION",
    "account": "ACCOUNT",
    "qos": "QOS",
    "reservation": "RESERVATION",
    "constraint": "CONSTRAINT",
    "memory_per_node": "MEM_PER_NODE",
}
"""Fields of a JobSpec and their SBATCH_... variables. sbatch prefers the variable to the directive in the script, so
the variable is removed where the plan has a value."""


def new_mark() -> str:
    """Return a random field separator, so that no job name can contain it."""
    return "\x1f" + uuid.uuid4().hex[:8]


@dataclass(frozen=True, slots=True)
class Slurm:
    """The Scheduler port, implemented with Slurm's commands."""

    runner: Runner
    mark: str = field(default_factory=new_mark)

    def jobs(self) -> list[Job]:
        """Return the whole queue, with ended jobs that Slurm still remembers (MinJobAge) and hidden partitions."""
        argv = ("squeue", "--noheader", "--all", "--states=all", f"--Format={long_format(SQUEUE_FIELDS, self.mark)}")
        return parse_jobs(whole(self._run_checked(*argv), self.mark, len(SQUEUE_FIELDS)), self.mark)

    def past(self, ids: Sequence[str]) -> list[Job]:
        if not ids:
            return []
        done = self._run(
            "sacct",
            "--noheader",
            "--duplicates",
            "--allocations",
            "--parsable",
            f"--delimiter={self.mark}",
            f"--jobs={','.join(map(checked, ids))}",
            f"--format={','.join(SACCT_FIELDS)}",
        )
        if "accounting storage is disabled" in done.err:
            return []
        return parse_past(raise_for_error(done).out, self.mark)

    def nodes(self) -> list[Node]:
        argv = ("sinfo", "--noheader", "--all", "--Node", f"--Format={long_format(SINFO_FIELDS, self.mark)}")
        return parse_nodes(whole(self._run_checked(*argv), self.mark, len(SINFO_FIELDS)), self.mark)

    def features(self) -> frozenset[str]:
        done = self._run_checked("sinfo", "--noheader", "--all", "--Node", "--Format=Features:0")
        return frozenset(chain.from_iterable(map(split_list, done.out.split())))

    def partitions(self) -> list[Partition]:
        return parse_partitions(self._run_checked("scontrol", "--all", "--oneliner", "show", "partition").out)

    def reservations(self) -> list[Reservation]:
        return parse_reservations(self._run_checked("scontrol", "--all", "--oneliner", "show", "reservation").out)

    def limits(self) -> Limits:
        return parse_limits(self._run_checked("scontrol", "show", "config").out)

    def accounting(self, user: str, cluster: str) -> Accounting | None:
        outputs = {}
        for table, argv in accounting.build_queries(user, cluster).items():
            done = self._run(*argv)
            if "not running a supported accounting_storage plugin" in done.err:
                return None
            outputs[table] = raise_for_error(done).out
        return accounting.parse_accounting(user, outputs)

    def submit(self, plan: LaunchPlan, *, script: str, output: str) -> str:
        unset = {f"SBATCH_{name}": None for key, name in SBATCH_VARIABLES.items() if getattr(plan.spec, key)}
        argv = (
            "sbatch",
            "--parsable",
            f"--comment={plan.comment}",
            f"--output={output}",
            "--open-mode=append",
            f"--chdir={Path(script).parent}",
            script,
        )
        try:
            out = raise_for_error(self._run(*argv, unset=unset)).out
        except Unreachable as error:
            raise unknown_submission(error.message) from error
        number = out.strip().partition(";")[0]  # `12;cluster` on a site with several clusters
        if not number.isdigit():
            raise unknown_submission(f"sbatch answered {out.strip()[:80]!r}")
        return number

    def hold(self, job: str) -> None:
        raise_for_error(self._run("scontrol", "hold", checked(job)), fine=(GONE,))

    def release(self, job: str) -> None:
        raise_for_error(self._run("scontrol", "release", checked(job)), fine=(GONE,))

    def cancel(self, job: str, *, queued_only: bool = False) -> None:
        only = ("--state=PENDING",) if queued_only else ()
        raise_for_error(self._run("scancel", *only, checked(job)), fine=(GONE, UNKNOWN_ID))

    def signal(self, job: str, name: str) -> None:
        # By step: for a whole job, scancel 22.05 reads the answer as a transition and repeats the signal for a minute.
        listed = self._run("squeue", "--steps", f"--jobs={checked(job)}", "--noheader", "--format=%i")
        steps = [line.rpartition(".")[2] for line in raise_for_error(listed, fine=(GONE, UNKNOWN_ID)).out.split()]
        for step in filter(str.isdigit, steps):
            done = self._run("scancel", f"--signal={name}", f"{job}.{step}")
            raise_for_error(done, fine=(GONE, UNKNOWN_ID))

    def exclude(self, job: str, nodes: str) -> None:
        done = self._run("scontrol", "update", f"JobId={checked(job)}", f"ExcNodeList={nodes}")
        raise_for_error(done, fine=(GONE, NOT_PENDING))

    def excluded(self, job: str) -> str:
        # --array prints one row a task. A row for several tasks shows the node list of only one of them.
        columns = f"--format=%T{self.mark}%x{self.mark}"
        return parse_excluded(self._list_job(job, "--array", columns), self.mark)

    def members(self, partition: str) -> list[str]:
        done = self._run_checked("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N")
        return sorted(set(done.out.split()))

    def kinds(self) -> dict[str, str]:
        argv = ("sinfo", "--noheader", "--all", "--Node", f"--Format={long_format(KIND_FIELDS, self.mark)}")
        return parse_kinds(whole(self._run_checked(*argv), self.mark, len(KIND_FIELDS)), self.mark)

    def reasons(self) -> list[DrainReason]:
        argv = ("sinfo", "--noheader", "--all", "--Node", f"--Format={long_format(REASON_FIELDS, self.mark)}")
        reasons = parse_reasons(self._run_checked(*argv).out, self.mark)
        # Slurm 24.11 and newer also print the old reasons of nodes that are back in service.
        out_of_service = {node.name for node in self.nodes() if node.reason}
        return [reason for reason in reasons if reason.node in out_of_service]

    def drain(self, node: str, reason: str) -> None:
        self._run_checked("scontrol", "update", f"NodeName={one_node(node)}", "State=DRAIN", f"Reason={reason}")

    def resume(self, node: str) -> None:
        self._run_checked("scontrol", "update", f"NodeName={one_node(node)}", "State=RESUME")

    def reboot(self, node: str, reason: str) -> None:
        self._run_checked("scontrol", "reboot", "ASAP", "nextstate=RESUME", f"reason={reason}", one_node(node))

    def end_time(self, job: str) -> datetime | None:
        return parse_end(self._list_job(job, f"--Format={long_format(END_FIELDS, self.mark)}"), self.mark)

    def _list_job(self, job: str, *options: str) -> str:
        argv = ("squeue", "--noheader", "--all", "--states=all", f"--jobs={checked(job)}", *options)
        return raise_for_error(self._run(*argv), fine=(UNKNOWN_ID,)).out

    def _run_checked(self, *argv: str) -> Completed:
        return raise_for_error(self._run(*argv))

    def _run(self, *argv: str, unset: dict[str, None] | None = None) -> Completed:
        env = FULL_LENGTH | NO_FILTER.get(argv[0], {}) | (unset or {})
        try:
            return self.runner.run(argv, timeout=TIMEOUT_S, env=env)
        except TimedOut as error:
            raise Unreachable(str(error), hint=HINT) from error


def whole(done: Completed, mark: str, width: int) -> str:
    """Return the output if it consists of complete rows. Raises Unreachable: a broken list is not an empty queue."""
    lines = [line for line in done.out.splitlines() if line.strip() and not line.startswith("CLUSTER:")]
    marks = done.out.count(mark)
    if (lines and not marks) or marks % width:
        raise Unreachable(f"{done.argv[0]} printed an incomplete list: {lines[-1][:80]!r}", hint=HINT)
    return done.out


def checked(job: str) -> str:
    """Return the job id if it is well-formed, since it becomes a program's argument. Raises InputError."""
    if not JOB_ID.fullmatch(job):
        raise InputError(f"{job!r} is not a job id", hint="such as 1234, or 1234_5 for a task of an array")
    return job


def one_node(name: str) -> str:
    """Return the name if it can be the name of a single node. Raises InputError."""
    if not NODE_NAME.fullmatch(name):
        raise InputError(f"{name!r} is not a node name", hint="such as node001")
    return name


def unknown_submission(text: str) -> Unreachable:
    """Return the error for a submission that Slurm may or may not have accepted."""
    return Unreachable(
        f"{text}: it is unknown whether the train was submitted",
        hint="launch again: opsctl first searches the queue for this submission",
    )
