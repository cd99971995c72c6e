"""Slurm through its own commands: an argument list, a timeout, a parser."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path

from opsctl.base.errors import InputError, Unreachable
from opsctl.base.model import Accounting, DrainReason, Job, LaunchPlan, Limits, Node, Partition, Reservation
from opsctl.base.ports import Completed, Runner, TimedOut
from opsctl.slurm import accounting
from opsctl.slurm.field_values import SLURM_WORDS, split_list
from opsctl.slurm.job_environment import unset_slurm_variables
from opsctl.slurm.parse_output import (
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
    parse_shapes,
)
from opsctl.slurm.slurm_errors import GONE, HINT, NOT_PENDING, UNKNOWN_ID, raise_for_error

TIMEOUT_S = 60.0
"""Default for one command: busy controllers take 15 to 30 s. Slurm's programs give up on one that is down."""
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
JOB_ID = re.compile(r"\d+(_(\d+|\[[\d,:-]+\]))?(\+\d+)?", re.ASCII)

FULL_LENGTH: dict[str, str | None] = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Print times in seconds since the epoch, which need no time zone, and lists of array tasks in full."""
_VARIABLES = SLURM_WORDS["variables"]
NO_FILTER: dict[str, dict[str, str | None]] = {
    program: {f"{program.upper()}_{name}": None for name in names} for program, names in _VARIABLES["filters"].items()
}
"""Variables that a user may have set for typing commands by hand. Even empty, SQUEUE_USERS hides every job."""
SBATCH_VARIABLES: dict[str, str] = _VARIABLES["sbatch"]
"""Fields of a JobSpec and their SBATCH_... variables. sbatch prefers the variable to the directive in the script, so
the variable is removed where the plan has a value."""


def new_mark() -> str:
    """Return a random field separator, so that no job name can contain it."""
    return "\x1f" + uuid.uuid4().hex[:8]


@dataclass(frozen=True, slots=True)
class Slurm:
    """Slurm. A method runs one or a few commands, each with a timeout, and never retries.

    Raises Unreachable if Slurm does not answer, SlurmError if Slurm refuses, NotAllowed if the user lacks the
    permission.
    """

    runner: Runner
    mark: str = field(default_factory=new_mark)
    timeout_s: float = TIMEOUT_S

    def jobs(self) -> list[Job]:
        """Return the whole queue, of every user, with ended jobs that Slurm still remembers (MinJobAge), in one query.

        A job that is not in the list is absent, which does not mean ended.
        """
        return parse_jobs(self.list_queue(), self.mark)

    def list_queue(self) -> str:
        """Return the whole queue as squeue prints it, with `mark` between the fields."""
        argv = ("squeue", "--noheader", "--all", "--states=all", f"--Format={long_format(SQUEUE_FIELDS, self.mark)}")
        return whole(self._run_checked(*argv), self.mark, len(SQUEUE_FIELDS))

    def past(self, ids: Sequence[str]) -> list[Job]:
        """Return every attempt of these jobs and arrays from accounting; empty without accounting."""
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
        """Return every node."""
        return parse_nodes(self._list_nodes(SINFO_FIELDS), self.mark)

    def features(self) -> frozenset[str]:
        """Return the features of all nodes, which a job may ask for by --constraint."""
        done = self._run_checked("sinfo", "--noheader", "--all", "--Node", "--Format=Features:0")
        return frozenset(chain.from_iterable(map(split_list, done.out.split())))

    def partitions(self) -> list[Partition]:
        """Return every partition that the user may see."""
        return parse_partitions(self._run_checked("scontrol", "--all", "--oneliner", "show", "partition").out)

    def reservations(self) -> list[Reservation]:
        """Return every reservation, including future ones."""
        return parse_reservations(self._run_checked("scontrol", "--all", "--oneliner", "show", "reservation").out)

    def limits(self) -> Limits:
        """Return version, plugins and limits of this Slurm."""
        return parse_limits(self._run_checked("scontrol", "show", "config").out)

    def accounting(self, user: str, cluster: str) -> Accounting | None:
        """Return the limits of `user` on `cluster`; None without accounting. Runs three commands."""
        outputs = {}
        for table, argv in accounting.build_queries(user, cluster).items():
            done = self._run(*argv)
            if "not running a supported accounting_storage plugin" in done.err:
                return None
            outputs[table] = raise_for_error(done).out
        return accounting.parse_accounting(user, outputs)

    def submit(self, plan: LaunchPlan, *, script: str, output: str) -> str:
        """Submit the wrapper at the path `script`, with `output` as the batch log; return the new array's id.

        After Unreachable the train may or may not be submitted: search the queue for the plan's comment before
        submitting again.
        """
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
            return parse_submitted(raise_for_error(self._run(*argv, unset=unset)).out)
        except Unreachable as error:
            raise unknown_submission(error.message) from error

    def hold(self, job: str) -> None:
        """Keep the queued tasks of an array, or a queued job, from starting. Idempotent."""
        raise_for_error(self._run("scontrol", "hold", checked(job)), fine=(GONE,))

    def release(self, job: str) -> None:
        """Undo `hold`. Idempotent."""
        raise_for_error(self._run("scontrol", "release", checked(job)), fine=(GONE,))

    def cancel(self, job: str, *, queued_only: bool = False) -> None:
        """End an array, a task (`12_3`) or a job; with `queued_only`, spare running tasks. Idempotent."""
        only = ("--state=PENDING",) if queued_only else ()
        raise_for_error(self._run("scancel", *only, checked(job)), fine=(GONE, UNKNOWN_ID))

    def signal(self, job: str, name: str) -> None:
        """Send the signal `name` (such as TERM) to the job steps of a job, not to its batch script. Idempotent."""
        # By step: for a whole job, scancel 22.05 reads the answer as a transition and repeats the signal for a minute.
        listed = self._run("squeue", "--steps", f"--jobs={checked(job)}", "--noheader", "--format=%i")
        steps = [line.rpartition(".")[2] for line in raise_for_error(listed, fine=(GONE, UNKNOWN_ID)).out.split()]
        for step in filter(str.isdigit, steps):
            done = self._run("scancel", f"--signal={name}", f"{job}.{step}")
            raise_for_error(done, fine=(GONE, UNKNOWN_ID))

    def exclude(self, job: str, nodes: str) -> None:
        """Replace the list of nodes that the queued tasks of `job` must not get."""
        done = self._run("scontrol", "update", f"JobId={checked(job)}", f"ExcNodeList={nodes}")
        raise_for_error(done, fine=(GONE, NOT_PENDING))

    def start_after(self, waiting: Sequence[Job], task: str) -> None:
        """Let queued tasks start only once `task` has ended, in any way. Idempotent.

        When Slurm 22.05 takes a lost node out of a running task, it lets the next task of a `%1` array start beside it.
        """
        for job in waiting:
            after = f"Dependency=afterany:{checked(task)}"
            done = self._run("scontrol", "update", f"JobId={name_tasks(job)}", after)
            raise_for_error(done, fine=(GONE, NOT_PENDING))

    def give_back(self, job: str, remaining: str) -> None:
        """Reduce a running job to the nodes `remaining`. Processes on the other nodes are ended."""
        # scontrol writes scripts for the user's shell into its working directory.
        shrink = 'cd "$(mktemp -d)" && scontrol update "JobId=$0" "NodeList=$1"; code=$?; rm -f slurm_job_*; exit $code'
        self._run_checked("sh", "-c", shrink, checked(job), remaining)

    def excluded(self, job: str) -> str:
        """Return the nodes that the queued tasks of `job` must not get, folded; empty without any."""
        # --array prints one row a task. A row for several tasks shows the node list of only one of them.
        columns = f"--format=%T{self.mark}%x{self.mark}"
        return parse_excluded(self._list_job(job, "--array", columns), self.mark)

    def members(self, partition: str) -> list[str]:
        """Return the names of a partition's nodes; empty for a partition that does not exist."""
        done = self._run_checked("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N")
        return sorted(set(done.out.split()))

    def kinds(self) -> dict[str, str]:
        """Return the CPUs, memory and gres that the configuration gives each node, as text, by node."""
        return parse_kinds(self._list_nodes(KIND_FIELDS), self.mark)

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the CPUs and GPUs that the configuration gives each node."""
        return parse_shapes(self._list_nodes(KIND_FIELDS), self.mark)

    def reasons(self) -> list[DrainReason]:
        """Return why nodes are out of service, since when, and the user who took each node out."""
        reasons = parse_reasons(self._list_nodes(REASON_FIELDS), self.mark)
        # Slurm 24.11 and newer also print the old reasons of nodes that are back in service.
        out_of_service = {node.name for node in self.nodes() if node.reason}
        return [reason for reason in reasons if reason.node in out_of_service]

    def drain(self, node: str, reason: str) -> None:
        """Give the node no new job; running jobs continue."""
        self._run_checked("scontrol", "update", f"NodeName={one_node(node)}", "State=DRAIN", f"Reason={reason}")

    def resume(self, node: str) -> None:
        """Undo a drain, or put a node that is down back into service."""
        self._run_checked("scontrol", "update", f"NodeName={one_node(node)}", "State=RESUME")

    def reboot(self, node: str, reason: str) -> None:
        """Drain the node, reboot when the running jobs have ended, then resume the node."""
        self._run_checked("scontrol", "reboot", "ASAP", "nextstate=RESUME", f"reason={reason}", one_node(node))

    def end_time(self, job: str) -> datetime | None:
        """Return the end of the running `job` by its current time limit; None without a limit."""
        return parse_end(self._list_job(job, f"--Format={long_format(END_FIELDS, self.mark)}"), self.mark)

    def _list_nodes(self, fields: Sequence[str]) -> str:
        argv = ("sinfo", "--noheader", "--all", "--Node", f"--Format={long_format(fields, self.mark)}")
        return whole(self._run_checked(*argv), self.mark, len(fields))

    def _list_job(self, job: str, *options: str) -> str:
        argv = ("squeue", "--noheader", "--all", "--states=all", f"--jobs={checked(job)}", *options)
        return raise_for_error(self._run(*argv), fine=(UNKNOWN_ID,)).out

    def _run_checked(self, *argv: str) -> Completed:
        return raise_for_error(self._run(*argv))

    def _run(self, *argv: str, unset: dict[str, None] | None = None) -> Completed:
        env = FULL_LENGTH | NO_FILTER.get(argv[0], {}) | (unset or {})
        try:
            return self.runner.run(argv, timeout=self.timeout_s, env=env)
        except TimedOut as error:
            raise Unreachable(str(error), hint=HINT) from error


def whole(done: Completed, mark: str, width: int) -> str:
    """Return the output if it consists of complete rows. Raises Unreachable: a broken list is not an empty queue."""
    lines = [line for line in done.out.splitlines() if line.strip() and not line.startswith("CLUSTER:")]
    marks = done.out.count(mark)
    if (lines and not marks) or marks % width:
        raise Unreachable(f"{done.argv[0]} printed an incomplete list: {lines[-1][:80]!r}", hint=HINT)
    return done.out


def name_tasks(job: Job) -> str:
    """Return the queued tasks of one row of the queue in Slurm's notation: `12_[3-10]`."""
    return f"{job.array}_[{','.join(map(str, job.tasks))}]" if job.tasks else job.id


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


def list_argv(path: str) -> tuple[str, ...]:
    """Return the command that submits the script at `path` and prints the job's id."""
    return ("sbatch", "--parsable", path)


def submit_script(runner: Runner, env: Mapping[str, str], script: str, *, options: Sequence[str] = ()) -> str:
    """Submit the text of a script and return the job's id. `env` is the environment of this process.

    Raises SlurmError. After Unreachable, the script may or may not have been submitted.
    """
    argv = ("sbatch", "--parsable", *options)
    try:
        out = raise_for_error(
            runner.run(argv, timeout=TIMEOUT_S, stdin=script, env=NO_FILTER["sbatch"] | unset_slurm_variables(env))
        ).out
    except TimedOut as error:
        raise Unreachable(str(error), hint=HINT) from error
    return parse_submitted(out)


def parse_submitted(out: str) -> str:
    """Return the job id that `sbatch --parsable` printed. Raises Unreachable."""
    number = out.strip().partition(";")[0]  # `12;cluster` on a site with several clusters
    if not number.isdigit():
        raise Unreachable(f"sbatch answered {out.strip()[:80]!r}", hint=HINT)
    return number
