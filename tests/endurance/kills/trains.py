"""Verbs on a real Slurm: each cut finds a train of its own there."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from opsctl.guard.attempt_record import Start, write_start
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec
from opsctl.slurm.commands import Slurm
from opsctl.state.events import AttemptStarted, Diagnosed
from opsctl.state.journal import Journal, replay
from opsctl.state.run_dir import RunDir
from opsctl.trainer.contract import StopReason, TrainerStop, to_json
from tests.endurance.kills.files import Place
from tests.endurance.kills.kill_proof import Runs
from tests.endurance.kills.state import State, nodes, queue
from tests.support.trains import until

NUMBERS = itertools.count(1)
HELD = "extra = ['--hold']"


@contextmanager
def slurm_of(place: Path, name: str, *, many: int = 4) -> Iterator[Sandbox]:
    """A Slurm that ends with the block."""
    place.chmod(0o755)
    places = Places(state=place / "sandbox", cache=place / "cache")
    spec = SandboxSpec(name=name, nodes=many, gpus_per_node=2, fast=True)
    sandbox = Sandbox.up(spec, places=places, clock=SystemClock(), runner=SystemRunner())
    try:
        _count_from(sandbox, 70_001)
        yield sandbox
    finally:
        sandbox.down(grace=0.2)


def _count_from(sandbox: Sandbox, first: int) -> None:
    """Ids of jobs that cannot be taken for other numbers."""
    conf = sandbox.record.site.conf
    conf.write_text(f"{conf.read_text()}\nFirstJobId={first}\n")
    for action in (FaultKind.KILL, FaultKind.RESTART):
        sandbox.fault("controller", action)
    until(lambda: {node.state for node in Slurm(SystemRunner(env=sandbox.env())).nodes()} == {"IDLE"})


@dataclass(kw_only=True)
class Train(Place):
    """A train that `before` has made something of: launched, held, ended."""

    sandbox: Sandbox
    runs: Runs
    slurm_table: str = HELD
    command: str = "['true']"
    tasks: int = 3
    before: Sequence[Sequence[str]] = ()
    """Verbs that were typed before."""
    happened: Callable[[Any], object] = lambda _: True
    """What came after those."""
    wait: Callable[[Any], object] = lambda _: True
    """What must be so before the verb is typed, and again before anything is compared."""
    then: Callable[[Any], object] = lambda _: True
    ending: Sequence[str] = ()
    """A verb that takes back what the others did, if it is not the train's."""
    name: str = field(default="")

    def __post_init__(self) -> None:
        self.name = f"t{next(NUMBERS):05}x"
        super().__post_init__()

    def make_train(self) -> None:
        self.env |= self.sandbox.env()
        self.slurm = Slurm(SystemRunner(env=self.sandbox.env()))
        self.run = RunDir(self.trains / self.name)
        for file, memory in (("first", 10), ("changed", 10), ("second", 11)):
            note = "# changed\n" if file != "first" else ""
            self.write_train(file, f"memory_per_node = '{memory}'\n{note}", "30" if file != "first" else "10")
        for words in self.before:
            code, _, text = self.runs.run(self, self.typed(words))
            assert code == 0, text
        self.happened(self)
        until(lambda: self.wait(self))

    def write_train(self, file: str, more: str, seconds: str) -> None:
        (self.root / f"{file}.toml").write_text(
            f"name = '{self.name}'\ncommand = {self.command}\n[slurm]\nnodes = 1\ntime_limit = '5'\n"
            f"tasks = {self.tasks}\n{self.slurm_table}\n{more}"
            f"[guard]\npoll_seconds = 0.1\nstop_grace_seconds = {seconds}\n"
        )

    def typed(self, words: Sequence[str]) -> list[str]:
        given = {"{root}": str(self.root), "{t}": self.name, "{array}": self.arrays[-1] if self.arrays else ""}
        for sign, text in given.items():
            words = [word.replace(sign, text) for word in words]
        return ["--site", str(self.site), *words]

    @property
    def argv(self) -> list[str]:
        return self.typed(self.words)

    @property
    def arrays(self) -> list[str]:
        known = replay(self.journal.events()).arrays if self.run.journal.exists() else {}
        there = {job.array for job in self.slurm.jobs() if job.name == self.name}
        return sorted({*known, *there}, key=int)

    @property
    def journal(self) -> Journal:
        return Journal(self.run, SystemClock())

    @property
    def names(self) -> dict[str, str]:
        arrays = {array: f"A{number}" for number, array in enumerate(self.arrays)}
        return {**super().names, self.name: "t", **arrays}

    def state(self) -> State:
        until(lambda: self.then(self))
        state = super().state()
        return {**state, "queue": queue(self.slurm, self.name), "nodes": nodes(self.slurm)}

    def lived(self, *, code: int, log: str = "", stop: TrainerStop | None = None) -> None:
        """A task of it has run on node002 and has ended without a finalization."""
        attempt, now = self.run.attempt(f"{self.arrays[-1]}_1.0"), datetime.now(UTC)
        begin = now - timedelta(minutes=1)
        write_start(
            self.run,
            attempt,
            Start(
                attempt=attempt.name,
                job=self.arrays[-1],
                nodes="node002",
                node_count=1,
                gpus="",
                node="node002",
                at=begin,
                checkpoint=-1,
                main_log=0,
            ),
        )
        self.journal.append(AttemptStarted(attempt=attempt.name, nodes="node002"))
        (self.run.attempt_logs(attempt.name) / "node002-3.log").write_text(f"Traceback\n  at train.py:7\n{log}\n")
        if stop:
            attempt.stop_reason.write_text(to_json(StopReason(reason=stop, step=9, at=now.timestamp())))
        attempt.body_exit.write_text(f"{code}\n")

    def lived_again(self, *, code: int, log: str) -> None:
        """The same, after an attempt that made node002 suspect: a log line alone excludes nothing."""
        earlier = Diagnosed(
            attempt="1_1.0",
            cause_kind="gpu",
            cause="gpu-ecc",
            says="",
            node="node002",
            rank=3,
            suspects=(),
            evidence=(),
            also=(),
            advice="",
            accused=("node002",),
        )
        self.journal.append(earlier)
        self.lived(code=code, log=log)

    def kinds(self) -> State:
        """What was journalled, in whatever order: an attempt that starts at once writes too."""
        return {"journal": sorted({type(event).__name__ for event in self.journal.events()})}

    def runs_on(self) -> bool:
        """Its guard has begun."""
        return bool(replay(self.journal.events()).started)

    def rows(self) -> list[Any]:
        return [job for job in self.slurm.jobs() if job.name == self.name and not job.state.is_final]

    def close(self) -> None:
        if self.ending:
            self.runs.run(self, self.typed(self.ending))
        for array in self.arrays:
            self.slurm.cancel(array)
        until(lambda: not self.rows())
        super().close()
