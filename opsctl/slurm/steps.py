"""Run commands through Slurm: as a step in a job of the caller, or as a short job on an idle node. Hold idle nodes."""

import base64
import math
import re
import secrets
import zlib
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import ClassVar

from opsctl.base.errors import MissingProgram
from opsctl.base.nodesets import fold
from opsctl.base.ports import Answer, Answers, Completed, Runner, TimedOut
from opsctl.slurm.field_values import SLURM_WORDS

_SRUN = SLURM_WORDS["srun"]
NOT_STARTED = re.compile(f"srun: (error: )?.*({'|'.join(_SRUN['not_started'])}).*")
"""Messages of an srun that did not start the command."""
NOT_REACHED = re.compile(r"srun: error: Task launch for .* failed on node \S+: (Communication|Socket|Zero).*")
"""Messages of an srun that started the command on other nodes."""
_VARIABLES = (*_SRUN["step_settings"], *_SRUN["job_size"])
REMOVED_ENV = {f"{prefix}_{name}": None for prefix, name in product(("SLURM", "SRUN"), _VARIABLES)}
"""Variables that this process may have from its own job, and that would change the step."""
TIMED_OUT = frozenset({124, 137, -9})
"""Exit codes of timeout(1) for a command that it has ended: by KILL it ends itself as well."""
GRANTED = re.compile(r"Granted job allocation (\d+)")
ANSWER_S = 30.0
"""Time limit for Slurm's commands, beyond the wait for the start of the job."""
UNHURRIED_S = 40.0
"""A command that may take so long runs only on nodes that answer: about 10 s after a step has started, srun notices a
lost node, and ends the command on all others. A quicker command has printed its answers by then."""
PACK_SCRIPT = Path(__file__).with_name("pack_answer.sh")
ANSWER_LINE = re.compile(r"^ *(\d+): (@\S+|#\d+|[A-Za-z0-9+/]+=*)$", re.MULTILINE | re.ASCII)
"""A line of a node in the output of pack_answer.sh. Whatever else Slurm or a prolog prints is left out."""
MAX_BYTES = 16 << 20
"""Bytes of stdout, and of stderr, that are read of one node."""
MAX_STEPS = 32
"""Steps in different jobs, or jobs, that are started at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InJob:
    """Runs a command as one step on all nodes of a job, which takes no resources from the job."""

    runner: Runner
    jobs: Mapping[str, str]
    """ID of a running job of the caller, by node."""
    name: str = "srun"

    def reaches(self, node: str) -> bool:
        return node in self.jobs

    def run_all(self, nodes: Sequence[str], argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answers:
        nodes_by_job: dict[str, list[str]] = {}
        for node in nodes:
            nodes_by_job.setdefault(self.jobs[node], []).append(node)
        with ThreadPoolExecutor(MAX_STEPS, thread_name_prefix="step") as pool:
            answers = pool.map(lambda job: self._run_in(job, nodes_by_job[job], argv, timeout, stdin), nodes_by_job)
            return dict(ChainMap(*answers))

    def _run_in(self, job: str, nodes: Sequence[str], argv: Sequence[str], timeout: float, stdin: str) -> Answers:
        lost = Answer(node="", by=self.name, problem="srun: the node does not answer", may_have_run=False)
        answers = {node: replace(lost, node=node) for node in nodes}
        packed = ("sh", "-c", PACK_SCRIPT.read_text(), "sh", stdin, *argv)
        try:
            silent: Sequence[str] = ()
            if len(nodes) > 1 and timeout >= UNHURRIED_S:
                silent = find_silent_nodes(self.runner, job, nodes, timeout=timeout / 3) or ()
            is_slow = len(silent) > len(nodes) / 2  # so many nodes are not lost at once
            targets = [node for node in nodes if is_slow or node not in silent]
            done = run_on_all(self.runner, job, targets, packed, timeout=timeout, options=("--label",))
        except (MissingProgram, TimedOut, OSError, ValueError) as error:
            lost = replace(lost, problem=str(error), may_have_run=not isinstance(error, MissingProgram))
            return {node: replace(lost, node=node) for node in nodes}
        refusal = NOT_STARTED.search(done.err) if not done.out else None
        reason = refusal or NOT_REACHED.search(done.err)
        problem = reason[0] if reason else f"srun: no answer within {timeout:g} s"
        return answers | parse_answers(done, targets, replace(lost, problem=problem, may_have_run=not refusal))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortJob:
    """Runs a command in one job that takes whole idle nodes at once; else in a job of each node.

    Needs the right to submit jobs, and nothing else.
    """

    runner: Runner
    idle: Collection[str]
    """The idle nodes."""
    partition: str = ""
    account: str = ""
    minutes: int = 5
    """Time limit of the job, which also ends the job of a command that was killed."""
    wait_s: float = 10
    """Time limit for the start of the job."""
    name: ClassVar[str] = "job"

    def reaches(self, node: str) -> bool:
        return node in self.idle

    def run_all(self, nodes: Sequence[str], argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answers:
        with self.hold(nodes) as held:
            if held:
                steps = InJob(runner=self.runner, jobs=held, name=self.name)
                return steps.run_all(nodes, argv, timeout=timeout, stdin=stdin)
        if len(nodes) == 1:
            problem = f"job: Slurm did not start a job on the node within {self.wait_s:g} s"
            return {nodes[0]: Answer(node=nodes[0], by=self.name, problem=problem, may_have_run=False)}
        with ThreadPoolExecutor(MAX_STEPS, thread_name_prefix="job") as pool:
            answers = pool.map(lambda node: self.run_all([node], argv, timeout=timeout, stdin=stdin), nodes)
            return dict(ChainMap(*answers))

    @contextmanager
    def hold(self, nodes: Sequence[str]) -> Iterator[dict[str, str]]:
        """Yield the job by node; no node if Slurm does not grant all nodes at once."""
        if not nodes:
            yield {}
            return
        name = f"opsctl-node-{secrets.token_hex(4)}"
        try:
            job = self._submit(nodes, name)
            yield dict.fromkeys(nodes, job) if job else {}
        finally:
            # By its name: after a time-out the id is not known.
            with suppress(MissingProgram, TimedOut, OSError):
                self.runner.run(("scancel", f"--name={name}"), timeout=ANSWER_S, env=REMOVED_ENV)

    def _submit(self, nodes: Sequence[str], name: str) -> str:
        """Return the id of the job; empty without a job."""
        options = [f"--immediate={max(1, math.ceil(self.wait_s))}", "--exclusive", f"--job-name={name}"]
        options += [f"--partition={self.partition}"] if self.partition else []
        options += [f"--account={self.account}"] if self.account else []
        options += [f"--time={self.minutes}", f"--nodelist={fold(nodes)}", f"--nodes={len(nodes)}", "--chdir=/"]
        try:
            done = self.runner.run(("salloc", "--no-shell", *options), timeout=self.wait_s + ANSWER_S, env=REMOVED_ENV)
        except (MissingProgram, TimedOut, OSError):
            return ""
        granted = GRANTED.search(done.err)
        return granted[1] if granted and done.code == 0 else ""


def run_on_all(
    runner: Runner,
    job: str,
    nodes: Sequence[str],
    argv: Sequence[str],
    *,
    timeout: float,
    options: Sequence[str] = (),
) -> Completed:
    """Run a command once on each node of a running job, as one step that takes no resources, with `options` of srun.

    After `timeout` seconds the step is ended, and what the other nodes have printed is returned with an exit code
    in TIMED_OUT. Raises MissingProgram and TimedOut.
    """
    size = (f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--nodelist={fold(nodes)}")
    # A killed srun leaves the step behind, so the step gets its own time limit. Without --mem=0 Slurm refuses the step
    # where another step has all memory of the job.
    limits = ("--overlap", "--mem=0", f"--jobid={job}", f"--time={max(1, math.ceil(timeout / 60))}")
    # srun waits for a dead node even after TERM.
    ended = ("timeout", "--kill-after=0.3", f"{timeout:g}", "srun", *limits, *size, "--chdir=/", *options, *argv)
    return runner.run(ended, timeout=timeout + ANSWER_S, env=REMOVED_ENV)


def find_silent_nodes(runner: Runner, job: str, nodes: Sequence[str], *, timeout: float) -> tuple[str, ...] | None:
    """Return the nodes of a running job that certainly do not answer within `timeout`; None if no node answers.

    Nothing is certain if Slurm refuses the step. Raises MissingProgram and TimedOut.
    """
    done = run_on_all(runner, job, nodes, ("sh", "-c", 'echo "$SLURMD_NODENAME"'), timeout=timeout)
    answered = set(done.out.split())
    is_certain = done.code in TIMED_OUT or NOT_REACHED.search(done.err)
    if is_certain and not answered:
        return None
    return tuple(node for node in nodes if node not in answered) if is_certain else ()


def parse_answers(done: Completed, nodes: Iterable[str], lost: Answer) -> Answers:
    """Separate the answers of a step that runs pack_answer.sh with `srun --label`.

    The answer is like `lost` for a node whose command has not ended.
    """
    answers = {node: replace(lost, node=node) for node in nodes}
    errors = _split(done.err)
    for task, text in _split(done.out).items():
        node, _, rest = text.partition("@")[2].partition("\n")
        packed, _, ending = rest.partition("#")
        if node in answers:
            answer = replace(lost, node=node, out=_unpack(packed), err=_unpack(errors.get(task, "")))
            answers[node] = replace(answer, code=int(ending.split()[0]), problem="") if ending else answer
    return answers


def _split(text: str) -> dict[str, str]:
    """Return the lines by task."""
    lines: dict[str, list[str]] = {}
    for task, line in ANSWER_LINE.findall(text):
        lines.setdefault(task, []).append(line)
    return {task: "\n".join(own) for task, own in lines.items()}


def _unpack(text: str) -> str:
    joined = text.replace("\n", "")
    data = b""
    with suppress(ValueError):
        data = base64.b64decode(joined[: len(joined) // 4 * 4])
    try:
        data = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, MAX_BYTES)
    except zlib.error:
        data = data[:MAX_BYTES]  # a node without gzip
    return data.decode(errors="replace")
