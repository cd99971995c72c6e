"""Slurm through its own commands: an argument list, a timeout, a parser."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from opsctl.errors import InputError, Unreachable
from opsctl.model import Accounting, DrainReason, Job, LaunchPlan, Limits, Node, Partition, Reservation
from opsctl.ports import Completed, Runner, TimedOut
from opsctl.scheduler import accounting
from opsctl.scheduler.parse_output import (
    END_FIELDS,
    REASON_FIELDS,
    SACCT_FIELDS,
    SINFO_FIELDS,
    SQUEUE_FIELDS,
    long_format,
    parse_end,
    parse_excluded,
    parse_jobs,
    parse_limits,
    parse_nodes,
    parse_partitions,
    parse_past,
    parse_reasons,
    parse_reservations,
)
from opsctl.scheduler.slurm_errors import GONE, HINT, NOT_PENDING, UNKNOWN_ID, raise_for_error

TIMEOUT = 10.0
"""Seconds for one command. With slurmctld down, Slurm's own programs give up after nine."""
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
JOB_ID = re.compile(r"\d+(_(\d+|\[[\d,:-]+\]))?(\+\d+)?", re.ASCII)

PLAIN: dict[str, str | None] = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Times in seconds since the epoch, which need no time zone; lists of array tasks in their full length."""
NO_FILTER = {
    program: {f"{program.upper()}_{name}": None for name in names.split()}
    for program, names in {
        "squeue": "ACCOUNT ARRAY FEDERATION LICENSES NAMES PARTITION PRIORITY QOS SIBLING SORT USERS",
        "sinfo": "FEDERATION PARTITION SORT",
        "scancel": "ACCOUNT BATCH FULL HURRY INTERACTIVE NAME PARTITION QOS STATE USER WCKEY",
        "sbatch": "ARRAY_INX CLUSTERS JOB_NAME NO_REQUEUE OPEN_MODE OUTPUT REQUEUE TIMELIMIT WAIT",
    }.items()
}
"""What a user may have set for commands typed by hand: even empty, SQUEUE_USERS hides every job from us."""
SPOKEN_FOR = {"partition": "PARTITION", "account": "ACCOUNT", "qos": "QOS", "reservation": "RESERVATION",
              "constraint": "CONSTRAINT", "memory_per_node": "MEM_PER_NODE"}  # fmt: skip
"""What sbatch takes from its environment (SBATCH_...) before the script's directives, so not where the plan has one."""


def new_mark() -> str:
    """What ends each field of an answer. Random, so that nobody can give a job a name that holds it."""
    return "\x1f" + secrets.token_hex(4)


@dataclass(frozen=True, slots=True)
class Slurm:
    """The Scheduler port, by Slurm's commands."""

    runner: Runner
    mark: str = field(default_factory=new_mark)

    def jobs(self) -> list[Job]:
        """Also what has ended and is still remembered (MinJobAge), and jobs in hidden partitions."""
        argv = ("squeue", "--noheader", "--all", "--states=all", f"--Format={long_format(SQUEUE_FIELDS, self.mark)}")
        return parse_jobs(whole(raise_for_error(self._run(*argv)), self.mark, len(SQUEUE_FIELDS)), self.mark)

    def past(self, ids: Sequence[str]) -> list[Job]:
        if not ids:
            return []
        done = self._run(
            "sacct", "--noheader", "--duplicates", "--allocations", "--parsable", f"--delimiter={self.mark}",
            f"--jobs={','.join(map(checked, ids))}", f"--format={','.join(SACCT_FIELDS)}",
        )  # fmt: skip
        if "accounting storage is disabled" in done.err:
            return []
        return parse_past(raise_for_error(done).out, self.mark)

    def nodes(self) -> list[Node]:
        argv = ("sinfo", "--noheader", "--all", "--Node", f"--Format={long_format(SINFO_FIELDS, self.mark)}")
        return parse_nodes(whole(raise_for_error(self._run(*argv)), self.mark, len(SINFO_FIELDS)), self.mark)

    def partitions(self) -> list[Partition]:
        return parse_partitions(raise_for_error(self._run("scontrol", "--all", "--oneliner", "show", "partition")).out)

    def reservations(self) -> list[Reservation]:
        return parse_reservations(
            raise_for_error(self._run("scontrol", "--all", "--oneliner", "show", "reservation")).out
        )

    def limits(self) -> Limits:
        return parse_limits(raise_for_error(self._run("scontrol", "show", "config")).out)

    def accounting(self, user: str, cluster: str) -> Accounting | None:
        answers = {}
        for name, argv in accounting.questions(user, cluster).items():
            done = self._run(*argv)
            if "not running a supported accounting_storage plugin" in done.err:
                return None
            answers[name] = raise_for_error(done).out
        return accounting.read(user, answers)

    def submit(self, plan: LaunchPlan, *, script: str, output: str) -> str:
        spoken = {f"SBATCH_{name}": None for key, name in SPOKEN_FOR.items() if getattr(plan.spec, key)}
        argv = ("sbatch", "--parsable", f"--comment={plan.comment}", f"--output={output}", "--open-mode=append",
                f"--chdir={Path(script).parent}", script)  # fmt: skip
        try:
            out = raise_for_error(self._run(*argv, unset=spoken)).out
        except Unreachable as error:
            raise unknown_submission(error.message) from error
        number = out.strip().partition(";")[0]  # `12;cluster` where there are several clusters
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

    def exclude(self, job: str, nodes: str) -> None:
        done = self._run("scontrol", "update", f"JobId={checked(job)}", f"ExcNodeList={nodes}")
        raise_for_error(done, fine=(GONE, NOT_PENDING))

    def excluded(self, job: str) -> str:
        # One row for each task (--array), for a row for many shows the list of one of them only.
        ask = f"--format=%T{self.mark}%x{self.mark}"
        return parse_excluded(self._rows_of(job, "--array", ask), self.mark)

    def members(self, partition: str) -> list[str]:
        argv = ("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N")
        return sorted(set(raise_for_error(self._run(*argv)).out.split()))

    def reasons(self) -> list[DrainReason]:
        argv = ("sinfo", "--noheader", "--all", "--Node", f"--Format={long_format(REASON_FIELDS, self.mark)}")
        return parse_reasons(raise_for_error(self._run(*argv)).out, self.mark)

    def drain(self, node: str, reason: str) -> None:
        argv = ("scontrol", "update", f"NodeName={one_node(node)}", "State=DRAIN", f"Reason={reason}")
        raise_for_error(self._run(*argv))

    def resume(self, node: str) -> None:
        raise_for_error(self._run("scontrol", "update", f"NodeName={one_node(node)}", "State=RESUME"))

    def reboot(self, node: str, reason: str) -> None:
        raise_for_error(self._run("scontrol", "reboot", "ASAP", "nextstate=RESUME", f"reason={reason}", one_node(node)))

    def end_time(self, job: str) -> datetime | None:
        return parse_end(self._rows_of(job, f"--Format={long_format(END_FIELDS, self.mark)}"), self.mark)

    def _rows_of(self, job: str, *ask: str) -> str:
        argv = ("squeue", "--noheader", "--all", "--states=all", f"--jobs={checked(job)}", *ask)
        return raise_for_error(self._run(*argv), fine=(UNKNOWN_ID,)).out

    def _run(self, *argv: str, unset: dict[str, None] | None = None) -> Completed:
        env = PLAIN | NO_FILTER.get(argv[0], {}) | (unset or {})
        try:
            return self.runner.run(argv, timeout=TIMEOUT, env=env)
        except TimedOut as error:
            raise Unreachable(str(error), hint=HINT) from error


def whole(done: Completed, mark: str, width: int) -> str:
    """What was printed, if it is rows to their end. Else nothing is known: rubbish is not an empty queue."""
    lines = [line for line in done.out.splitlines() if line.strip() and not line.startswith("CLUSTER:")]
    marks = done.out.count(mark)
    if (lines and not marks) or marks % width:
        raise Unreachable(f"{done.argv[0]} printed no list, or half of one: {lines[-1][:80]!r}", hint=HINT)
    return done.out


def checked(job: str) -> str:
    """The id, if it can be one of a job: it comes after a program's name. Raises InputError."""
    if not JOB_ID.fullmatch(job):
        raise InputError(f"{job!r} is not a job id", hint="such as 1234, or 1234_5 for a task of an array")
    return job


def one_node(name: str) -> str:
    """The name, if it can be one of a single node. Raises InputError."""
    if not NODE.fullmatch(name):
        raise InputError(f"{name!r} is not a node's name", hint="such as node001")
    return name


def unknown_submission(text: str) -> Unreachable:
    """Nobody knows whether the array is in the queue now."""
    return Unreachable(
        f"{text}: it is unknown whether the train was submitted",
        hint="launch it again: it looks in the queue for this submission first",
    )
