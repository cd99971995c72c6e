"""A train on a real Slurm whose body is a few lines of shell."""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from opsctl.base.model import Job, JobSpec, LaunchPlan
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.launch.render import directives, render
from opsctl.launch.train_arrays import TrainArrays
from opsctl.sandbox.cluster import Sandbox
from opsctl.slurm.commands import Slurm
from opsctl.state.events import Event, Submitted, Submitting
from opsctl.state.journal import Journal
from opsctl.state.run_dir import Attempt, RunDir
from tests.support.trains import until

E = TypeVar("E", bound=Event)


@dataclass
class GuardedTrain:
    """A train of one array in its own run directory."""

    path: Path
    sandbox: Sandbox
    guard: str = "poll_seconds = 0.2"
    """The [guard] table of the TRAIN.toml."""
    submitted: list[str] = field(default_factory=list)
    ended: dict[str, Job] = field(default_factory=dict)
    """Final rows by their id: Slurm forgets them, on a busy machine before the test has looked."""

    def __post_init__(self) -> None:
        self.run = RunDir(self.path / "gpt")
        self.runner = SystemRunner(env=self.sandbox.env())
        self.slurm = Slurm(self.runner)
        self.journal = Journal(self.run, SystemClock())
        self.arrays = TrainArrays(run=self.run, journal=self.journal, slurm=self.slurm)
        self.run.path.mkdir()
        self.run.create()
        self.site = self.path / "site.toml"
        self.site.write_text(f'root = "{self.path}"\ntrust_parents = true\n')
        head = f'name = "gpt"\ncommand = ["{sys.executable}"]\n[slurm]\nnodes = 1\ntime_limit = "10"\n'
        self.run.config.write_text(f"{head}[guard]\n{self.guard}\n")

    def submit(
        self, body: str, *, tasks: int = 1, python: str = sys.executable, limit: str = "10", mode: int = 0o755
    ) -> str:
        """Submit the train as `opsctl launch` does and return the array."""
        config = self.run.config.read_text()
        self.run.config.write_text(re.sub(r"(?m)^time_limit = .*", f'time_limit = "{limit}"', config))
        self.run.write(self.run.body, f"set -u\n{body}\n", mode=mode)
        spec = JobSpec(
            name="gpt",
            nodes=1,
            processes_per_node=1,
            cpus_per_process=1,
            time_limit=limit,
            tasks=tasks,
            memory_per_node="10",
        )
        wrapper = render(
            "slurm/wrapper.slurm.j2",
            directives=directives(spec),
            run_dir=str(self.run.path),
            python=python,
            site_file=str(self.site),
        )
        self.run.write(self.run.wrapper, wrapper)
        plan = LaunchPlan(train="gpt", spec=spec, wrapper=wrapper, body=body, nonce="n1")
        self.journal.append(Submitting(nonce="n1", tasks=tasks, after=""))
        array = self.slurm.submit(plan, script=str(self.run.wrapper), output=str(self.run.main_log))
        self.journal.append(Submitted(nonce="n1", array=array))
        self.submitted.append(array)
        return array

    @property
    def jobs(self) -> list[Job]:
        rows = {job.id: job for job in self.slurm.jobs() if job.array in self.submitted}
        self.ended |= {id: job for id, job in rows.items() if job.state.is_final}
        return list((self.ended | rows).values())

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self.jobs if job.state.is_waiting]

    @property
    def is_over(self) -> bool:
        """Whether no task runs and no waiting task can start."""
        jobs = self.jobs
        return bool(jobs) and all(job.state.is_final or job.is_held for job in jobs)

    def wait(self, *, seconds: float = 250) -> None:
        until(lambda: self.is_over, seconds=seconds)

    def wait_for(self, file: str) -> None:
        """Wait until the body has created a file in the run directory."""
        until((self.run.path / file).exists)

    def task(self, number: int) -> Job:
        """Return the row of a task that has started."""
        return next(job for job in self.jobs if job.tasks == (number,))

    def attempt(self, task: int = 1) -> Attempt:
        return self.run.attempt(f"{self.submitted[-1]}_{task}.0")

    def end(self, task: int = 1) -> dict[str, str]:
        """Wait until the attempt of a task is finalized and return its end.json."""
        until(self.attempt(task).end.exists)
        return json.loads(self.attempt(task).end.read_text())  # type: ignore[no-any-return]  # end.json is an object

    def events(self, kind: type[E]) -> list[E]:
        return [event for event in self.journal.events() if isinstance(event, kind)]

    @property
    def log(self) -> str:
        return self.run.main_log.read_text()

    def read_file(self, file: str) -> str:
        return (self.run.path / file).read_text()

    def run_slurm(self, *argv: str) -> None:
        done = self.runner.run(argv, timeout=250)
        assert done.code == 0, done.err

    def clear(self) -> None:
        for array in self.submitted:
            self.slurm.cancel(array)
        until(lambda: not [job for job in self.jobs if job.state.is_active])
