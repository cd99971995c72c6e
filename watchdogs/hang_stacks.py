"""Evidence of a hang: the ranks that do not answer, and the stacks of all ranks, stored and summarized."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ClusterShell.RangeSet import RangeSet

from opsctl.base.model import Job
from opsctl.base.nodesets import expand
from opsctl.base.ports import Runner
from opsctl.diagnosis.py_spy import FILE_NAME, PySpyDump, dump_stacks
from opsctl.diagnosis.request_stacks import collect_answers
from opsctl.diagnosis.speakers import speaker_of_file
from opsctl.diagnosis.stack_dumps import CANNOT_TRAIN, GONE, STATES, Stack, parse, render_stacks
from opsctl.nodes.remote.fanout import Fanout
from opsctl.slurm.steps import InJob
from opsctl.state.run_dir import Attempt

MAX_LINES = 4


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcesses:
    """The processes of an attempt's ranks, as far as known."""

    ranks: int
    homes: Mapping[int, str]
    """The node by rank."""
    states: Sequence[Stack] = ()
    reached: Collection[str] = ()
    """Nodes whose processes were listed."""

    def describe(self, rank: int) -> str:
        """Return why the rank cannot train; empty if its process runs or is unknown."""
        state = next((state for state in self.states if state.rank == rank), None)
        if state is None:
            # Without any process found, the ranks may only be unnamed: their environment lacks RANK.
            return STATES[GONE] if self.states and self.homes.get(rank) in self.reached else ""
        where = f" in {state.kernel_function}" if state.state == "D" and state.kernel_function else ""
        return f"{STATES[state.state]}{where}" if state.state in CANNOT_TRAIN else ""


def list_answered(target: Path) -> set[int]:
    """Return the ranks that wrote their own stack into `target`."""
    ranks = set()
    for path in target.glob("*.txt"):
        speaker = speaker_of_file(f"{path.stem}.log")
        if path.name != FILE_NAME and speaker.rank is not None:
            ranks.add(speaker.rank)
    return ranks


def render_silent(answered: Collection[int], processes: RankProcesses) -> list[str]:
    """Return lines such as `rank 2 on node017 does not answer: stopped (T)`; none if all or no ranks are silent.

    A rank whose process cannot run is named also where no rank answers, as with most foreign trainers. Pure.
    """
    silent = set(range(processes.ranks)) - set(answered) if answered else set()
    groups: dict[tuple[bool, str, str], list[int]] = {}
    for rank in range(processes.ranks):
        reason = processes.describe(rank)
        if reason or rank in silent:
            groups.setdefault((not reason, processes.homes.get(rank, ""), reason), []).append(rank)
    lines = []
    for (_, node, reason), ranks in sorted(groups.items()):
        numbers = RangeSet(",".join(map(str, ranks)))
        verb = f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"
        does = "does" if len(ranks) == 1 else "do"
        where = f" on {node}" if node else ""
        lines.append(f"{verb}{where} {does} not answer{f': {reason}' if reason else ''}")
    if len(lines) <= MAX_LINES:
        return lines
    return [*lines[:MAX_LINES], f"{len(lines) - MAX_LINES} more groups of ranks do not answer"]
