"""Evidence of a hang: the stacks of all ranks, stored in the attempt's directory and summarized in a few lines."""

from __future__ import annotations

from pathlib import Path

from opsctl.diagnosis.py_spy import dump_stacks
from opsctl.diagnosis.request_stacks import collect_answers, request_by_file
from opsctl.diagnosis.stack_dumps import render_stacks
from opsctl.model import Job
from opsctl.nodes.remote.fanout import Fanout
from opsctl.nodes.remote.srun import InJob
from opsctl.nodesets import expand
from opsctl.ports import Runner
from opsctl.state.run_dir import Attempt

__all__ = ["py_spy", "request_by_file", "summary"]


def summary(target: Path, *, ranks: int) -> list[str]:
    """Return the ranks by stack, the rarest stack first: the other ranks wait for those ranks."""
    return [*render_stacks(collect_answers(target), ranks=ranks), *([f"stacks: {target}"] if target.exists() else [])]


def py_spy(program: str, job: Job, attempt: Attempt, target: Path, runner: Runner) -> tuple[str, ...]:
    """Dump every rank's stack with py-spy (`program`), in own steps of the job; return the failures. Raises OSError."""
    nodes = expand(job.nodes)
    ways = Fanout(shells=[InJob(runner=runner, jobs=dict.fromkeys(nodes, job.id))])
    dump = dump_stacks(program, attempt.name, nodes, ways)
    dump.save(target)
    return dump.problems
