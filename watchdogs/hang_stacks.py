"""Evidence of a hang: the stacks of all ranks, kept in the attempt's directory and summed up in a few lines."""

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
    """Which ranks are where: the fewest first, for the odd ones out are what everybody else waits for."""
    return [*render_stacks(collect_answers(target), ranks=ranks), *([f"stacks: {target}"] if target.exists() else [])]


def py_spy(program: str, job: Job, attempt: Attempt, target: Path, runner: Runner) -> tuple[str, ...]:
    """Have py-spy (`program`) look at every rank, in steps beside those that run; what it could not see. Raises
    OSError."""
    nodes = expand(job.nodes)
    ways = Fanout(shells=[InJob(runner=runner, jobs=dict.fromkeys(nodes, job.id))])
    looked = dump_stacks(program, attempt.name, nodes, ways)
    looked.keep(target)
    return looked.problems
