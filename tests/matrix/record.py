"""Record what Slurm's commands print: python -m tests.matrix.record DIRECTORY [SCENE ...]

Starts opsctl's private Slurms, puts jobs and nodes in states that the parsers must read, and writes the
output to DIRECTORY/<program>/<case>.txt. opsctl's own code runs every command, with a fixed mark between fields.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.base.errors import OpsctlError
from opsctl.base.model import JobSpec, LaunchPlan
from opsctl.base.ports import Completed
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec
from opsctl.slurm.commands import Slurm

MARK = "\x1fmark"
HOSTILE = "new\nline | \"quoted\" $(touch owned) 'x'; é漢字 🚂\ttab"
LIKE_A_ROW = "12\x1f12\x1fN/A\x1fCOMPLETED\x1e12\x1f"
NOBODY = 65534
ACCOUNTS = Path(__file__).with_name("accounts.txt").read_text()


@dataclass
class Tape:
    """A runner that keeps the last result."""

    runner: SystemRunner
    last: Completed = field(default_factory=lambda: Completed(argv=("",), code=0, out="", err=""))

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: str = "", env: Mapping[str, str | None] | None = None
    ) -> Completed:
        self.last = self.runner.run(argv, timeout=timeout * 3, stdin=stdin, env=env)
        return self.last


@dataclass
class Recorder:
    """A Slurm, and the directory for the output of its commands."""

    sandbox: Sandbox
    out: Path

    def __post_init__(self) -> None:
        self.env = {**os.environ, **self.sandbox.env()}
        self.tape = Tape(SystemRunner(env=self.sandbox.env()))
        self.slurm = Slurm(self.tape, mark=MARK)

    def record_output(self, program: str, case: str, query: Callable[[], object]) -> None:
        """Run a query of opsctl and write the output of its command."""
        query()
        self._write(program, case, self.tape.last.out)

    def record_stderr(self, case: str, query: Callable[[], object]) -> None:
        """Run a query of opsctl, which may raise, and write the stderr of its command."""
        try:
            query()
        except OpsctlError as error:
            print(f"  {case}: {error.message}")
        self._write("stderr", case, self.tape.last.err)

    def _write(self, program: str, case: str, text: str) -> None:
        path = self.out / program / f"{case}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")

    def run_command(self, *argv: str, user: int | None = None) -> str:
        """Run a command and return its output. The command must succeed unless another user runs it."""
        done = subprocess.run(
            argv,
            env=self.env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
            user=user,
            group=user,
            extra_groups=[] if user else None,
        )
        if done.returncode and user is None:
            words = f"{done.stderr.strip()} {done.stdout.strip()}"
            raise SystemExit(f"{' '.join(argv)[:200]}: exit code {done.returncode}: {words}")
        self.tape.last = Completed(argv=tuple(argv), code=done.returncode, out=done.stdout, err=done.stderr)
        return done.stdout.strip()

    def submit(self, name: str, *options: str, command: str = "sleep 600") -> str:
        argv = ("sbatch", "--parsable", f"--job-name={name}", "--output=/dev/null", "--time=10", "--mem=10", *options)
        return self.run_command(*argv, f"--wrap={command}")

    def until(self, state: str, job: str, *, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while state not in self.run_command("squeue", "-hr", "--states=all", "-j", job, "-o%T").split():
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"job {job} was not {state} in {seconds:g} s: {self.run_command('squeue', '--states=all')}"
                )
            time.sleep(0.1)


def queue(tape: Recorder) -> None:
    """Record held, mixed and running arrays, then commands that succeed or fail on them."""
    train = tape.submit("train", "--array=1-4%1", "--comment=opsctl:train:n1", "--nodelist=node001")
    odd = tape.submit("odd", "--array=1,3,5-90:3%2", "--hold")
    mixed = tape.submit("mixed", "--array=1-6%1", "--nodelist=node001")
    tape.until("RUNNING", train)
    tape.until("RUNNING", mixed)
    tape.run_command("scontrol", "hold", f"{mixed}_3")
    time.sleep(2)  # until the scheduler has set the reasons of the waiting tasks
    tape.record_output("squeue", "arrays", tape.slurm.jobs)
    tape.record_output("squeue", "end", lambda: tape.slurm.end_time(train))
    tape.record_stderr("exclude-while-a-task-runs", lambda: tape.slurm.exclude(train, "node003"))
    tape.record_stderr("exclude-unknown-node", lambda: tape.slurm.exclude(train, "node999"))
    tape.record_output("squeue", "excluded", lambda: tape.slurm.excluded(train))
    tape.record_stderr("hold-not-owner", lambda: tape.run_command("scontrol", "hold", odd, user=NOBODY))
    tape.record_stderr("cancel-not-owner", lambda: tape.run_command("scancel", odd, user=NOBODY))
    tape.record_stderr("hold-unknown-id", lambda: tape.slurm.hold("999"))
    tape.record_stderr("cancel-unknown-id", lambda: tape.slurm.cancel("999", queued_only=True))
    tape.record_stderr("past-without-accounting", lambda: tape.slurm.past([train]))
    tape.record_stderr("accounts-without-accounting", lambda: tape.slurm.accounting("root", "sandbox"))
    tape.record_stderr("squeue-unknown-field", lambda: tape.tape.run(("squeue", "-h", "--Format=Nosuch"), timeout=10))
    tape.record_stderr("sbatch-bad-partition", lambda: bad_partition(tape))
    tape.run_command("scancel", "--user=root")


def bad_partition(tape: Recorder) -> None:
    spec = JobSpec(
        name="t", nodes=1, processes_per_node=1, cpus_per_process=1, time_limit="5", tasks=1, memory_per_node="10"
    )
    script = tape.out / "bad.slurm"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("#!/bin/bash\n#SBATCH --partition=nope\ntrue\n")
    plan = LaunchPlan(train="t", spec=spec, wrapper="", body="", nonce="n1")
    try:
        tape.slurm.submit(plan, script=str(script), output="/dev/null")
    finally:
        script.unlink()


def endings(tape: Recorder) -> None:
    fails = tape.submit("fails", command="exit 7")
    killed = tape.submit("killed")
    again = tape.submit("again", "--requeue")
    gone = tape.submit("gone", "--array=1-3", command="exit 7")
    tape.until("FAILED", fails)
    tape.until("RUNNING", killed)
    tape.run_command("scancel", killed)
    tape.until("CANCELLED", killed)
    tape.until("RUNNING", again)
    tape.run_command("scontrol", "requeue", again)
    tape.until("PENDING", again)
    tape.until("RUNNING", again, seconds=180)
    tape.record_output("squeue", "ended", tape.slurm.jobs)
    tape.until("FAILED", gone)
    tape.record_stderr("hold-finished", lambda: tape.slurm.hold(gone))
    tape.run_command("scancel", "--user=root")


def hostile(tape: Recorder) -> None:
    tape.submit(HOSTILE, "--hold", f"--comment={HOSTILE}")
    tape.submit("n" * 300, "--hold")
    tape.submit(LIKE_A_ROW, "--hold", "--comment=\x1fmar")
    tape.submit("\udcff\udcfebad", "--hold")
    tape.submit(" ", "--hold")
    tape.record_output("squeue", "hostile", tape.slurm.jobs)
    tape.run_command("scancel", "--user=root")


def nodes(tape: Recorder) -> None:
    tape.run_command(
        "scontrol", "create", "PartitionName=short", "Nodes=node[001-002]", "MaxNodes=1", "MaxTime=30", "State=UP"
    )
    tape.run_command("scontrol", "create", "PartitionName=off", "Nodes=node001", "State=DOWN")
    tape.record_output("scontrol", "partitions", tape.slurm.partitions)
    tape.record_output("scontrol", "config", tape.slurm.limits)
    tape.run_command(
        "scontrol",
        "create",
        "ReservationName=maint",
        "StartTime=now+7hours",
        "Duration=60",
        "Users=root",
        "Nodes=node[001-002]",
        "Flags=MAINT,IGNORE_JOBS",
    )
    tape.run_command(
        "scontrol", "create", "ReservationName=mine", "StartTime=now", "Duration=30", "Users=root", "Nodes=node001"
    )
    tape.record_output("scontrol", "reservations", tape.slurm.reservations)
    for name in ("maint", "mine"):
        tape.run_command("scontrol", "delete", f"ReservationName={name}")
    tape.slurm.drain("node003", 'opsctl: gpu: "q" | new\nline é')
    tape.run_command("scontrol", "update", "NodeName=node004", "State=DOWN", "Reason=Kill task failed")
    time.sleep(1)
    tape.record_output("sinfo", "drained-and-down", tape.slurm.nodes)
    tape.record_output("sinfo", "reasons", tape.slurm.reasons)


def lost_node(tape: Recorder) -> None:
    """Record the states of a job whose node loses power."""
    job = tape.submit("lost", "--no-requeue", "--nodelist=node002")
    tape.until("RUNNING", job)
    tape.sandbox.fault("node002", FaultKind.CRASH)
    tape.run_command("scontrol", "update", "NodeName=node002", "State=DOWN", "Reason=dead")
    tape.until("NODE_FAIL", job)
    tape.record_output("squeue", "node-failed", tape.slurm.jobs)
    tape.record_output("sinfo", "node-failed", tape.slurm.nodes)


def controller_down(tape: Recorder) -> None:
    tape.sandbox.fault("controller", FaultKind.KILL)
    tape.record_stderr("squeue-controller-down", tape.slurm.jobs)
    tape.record_stderr("sinfo-controller-down", tape.slurm.nodes)
    tape.record_stderr("scancel-controller-down", lambda: tape.slurm.cancel("3"))
    tape.record_stderr("scontrol-hold-controller-down", lambda: tape.slurm.hold("3"))
    tape.record_stderr("scontrol-update-controller-down", lambda: tape.slurm.exclude("3", "node001"))
    tape.record_stderr("sbatch-controller-down", lambda: bad_partition(tape))


def munge_down(tape: Recorder) -> None:
    conf = Path(tape.sandbox.env()["SLURM_CONF"])
    text = conf.read_text()
    conf.write_text(text.replace("munge.socket", "munge.nosocket"))
    tape.record_stderr("squeue-munge-down", tape.slurm.jobs)
    conf.write_text(text)


def accounting(tape: Recorder) -> None:
    for line in ACCOUNTS.splitlines():
        tape.run_command("sacctmgr", "--immediate", *line.split())
    tape.slurm.accounting("root", "sandbox")
    for name, argv in list_accounting_queries():
        tape.record_output("sacctmgr", name, lambda argv=argv: tape.tape.run(argv, timeout=10))  # type: ignore[misc]  # the default binds the loop variable
    again = tape.submit("again", "--requeue", "--comment=opsctl:t:n", "--account=train")
    tape.until("RUNNING", again)
    tape.run_command("scontrol", "requeue", again)
    failed = tape.submit(HOSTILE, "--array=1-2", "--account=train", command="exit 7")
    waiting = tape.submit("waiting", "--array=1-9", "--hold", "--account=train")
    tape.until("RUNNING", again, seconds=180)
    tape.run_command("scancel", again)
    tape.until("CANCELLED", again)
    tape.until("FAILED", failed)
    time.sleep(3)  # until slurmdbd has the records
    tape.record_output("sacct", "attempts", lambda: tape.slurm.past([again, failed, waiting]))
    slurmdbd = tape.sandbox.record.daemon("slurmdbd")
    assert slurmdbd is not None
    slurmdbd.process.send(9)
    tape.record_stderr("sacct-database-down", lambda: tape.slurm.past([again]))
    tape.record_stderr("accounts-database-down", lambda: tape.slurm.accounting("root", "sandbox"))


def list_accounting_queries() -> list[tuple[str, tuple[str, ...]]]:
    from opsctl.slurm.accounting import build_queries  # noqa: PLC0415 - its module has this function's name

    return list(build_queries("root", "sandbox").items())


SCENES: dict[str, tuple[dict[str, int], tuple[Callable[[Recorder], None], ...]]] = {
    "hostile": ({}, (hostile,)),
    "queue": ({}, (queue, endings, nodes, lost_node, munge_down, controller_down)),
    "accounting": ({"accounting": True, "gpus_per_node": 2}, (accounting,)),
}
"""Every scene runs on a new Slurm, whose job ids begin at 1."""


def main(out: Path, scenes: Sequence[str]) -> None:
    clock, runner = SystemClock(), SystemRunner()
    with tempfile.TemporaryDirectory(prefix="opsctl-record-") as name:
        Path(name).chmod(0o755)
        places = Places(state=Path(name) / "state", cache=Path(name) / "cache")
        for scene in scenes or SCENES:
            options, steps = SCENES[scene]
            spec = SandboxSpec(name=scene, nodes=4, fast=True, **options)  # type: ignore[arg-type]  # fields of a SandboxSpec
            sandbox = Sandbox.up(spec, places=places, clock=clock, runner=runner)
            try:
                recorder = Recorder(sandbox, out)
                for step in steps:
                    print(f"{scene}: {step.__name__}", flush=True)
                    step(recorder)
            finally:
                sandbox.down(grace=0.2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
