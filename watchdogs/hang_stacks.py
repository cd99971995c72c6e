"""Evidence of a hang: the stacks of all ranks, stored in the attempt's directory and summarized in a few lines."""

from __future__ import annotations

from pathlib import Path

from opsctl.base.model import Job
from opsctl.base.nodesets import expand
from opsctl.base.ports import Runner
from opsctl.diagnosis.py_spy import PySpyDump, dump_stacks
from opsctl.diagnosis.request_stacks import collect_answers, request_by_file
from opsctl.diagnosis.silent_ranks import RankProcesses, list_answered, render_silent
from opsctl.diagnosis.stack_dumps import parse, render_stacks
from opsctl.nodes.remote.fanout import Fanout
from opsctl.slurm.steps import InJob
from opsctl.state.run_dir import Attempt

__all__ = ["find_silent", "list_processes", "request_by_file", "summary"]


def summary(target: Path, *, ranks: int) -> list[str]:
    """Return the ranks by stack, the rarest stack first: the other ranks wait for those ranks."""
    return [*render_stacks(collect_answers(target), ranks=ranks), *([f"stacks: {target}"] if target.exists() else [])]


def list_processes(program: str, job: Job, attempt: Attempt, target: Path, runner: Runner) -> PySpyDump:
    """List the ranks' processes, with their stacks by py-spy (`program`), in own steps of the job. Raises OSError."""
    nodes = expand(job.nodes)
    ways = Fanout(shells=[InJob(runner=runner, jobs=dict.fromkeys(nodes, job.id))])
    dump = dump_stacks(program, attempt.name, nodes, ways)
    dump.save(target)
    return dump


def find_silent(target: Path, job: Job, dump: PySpyDump, *, ranks: int, ranks_per_node: int) -> list[str]:
    """Return a line for the ranks of each node that do not answer or cannot run."""
    nodes = expand(job.nodes)
    homes = {rank: nodes[rank // ranks_per_node] for rank in range(min(ranks, len(nodes) * ranks_per_node))}
    states = [stack for stack in parse(dump.text.encode()) if stack.state]
    homes |= {state.rank: state.node for state in states if state.rank is not None}
    processes = RankProcesses(ranks=ranks, homes=homes, states=states, reached=dump.reached)
    return render_silent(list_answered(target), processes)
