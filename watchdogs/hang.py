"""A hung train: no progress while Slurm reports RUNNING.

Signs of progress are the heartbeat, with the limit of its phase, and iteration lines and checkpoints, with a limit
learnt from the train's own rhythm. The age of the log does not count: a hung train may continue to print. The
evidence of a hang is the stacks of all ranks, and the ranks that do not answer.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import ClassVar, Literal

from ClusterShell.RangeSet import RangeSet
from pydantic import AwareDatetime

from opsctl.base.findings import Finding, Severity
from opsctl.base.model import Job
from opsctl.base.nodesets import expand
from opsctl.base.ports import Runner
from opsctl.base.statements import NO_REMEDY, advise, state
from opsctl.checkpoints.scan import scan_directories
from opsctl.diagnosis.line_origin import origin_of_file
from opsctl.diagnosis.py_spy import FILE_NAME, PySpyDump, dump_stacks
from opsctl.diagnosis.request_stacks import collect_answers, request_by_file
from opsctl.diagnosis.stack_dumps import CANNOT_TRAIN, GONE, STATES, Stack, parse, render_stacks
from opsctl.nodes.remote.fanout import Fanout
from opsctl.slurm.steps import InJob
from opsctl.state.records import date_by_first_sight
from opsctl.state.run_dir import Attempt
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.signs import find_directories
from opsctl.trainer.contract import Heartbeat, Phase, read_heartbeat
from opsctl.watchdogs.context import WatchContext, WatchedTrain
from opsctl.watchdogs.new_lines import LogPlace, new_iterations

FLOOR_S = 900.0
"""Minimum of a learnt limit."""
LIMIT_LINES, LIMIT_PAUSES = 20, 3
"""A learnt limit covers the time of this many lines, and this multiple of the longest harmless pause."""
MAX_PAUSES_REMEMBERED = 50
MAX_SILENT_LINES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """The rhythm of a train's log lines and checkpoints, remembered between cycles."""

    attempt: str = ""
    step: int = 0
    saved: float = 0.0
    since: AwareDatetime
    """Time of the last sign of progress, by the watcher's clock."""
    checked_at: AwareDatetime
    is_starting: bool = True
    """Whether the attempt has shown no progress yet."""
    pauses: tuple[float, ...] = ()
    line_s: float | None = None

    @property
    def limit_s(self) -> float:
        return max(FLOOR_S, LIMIT_LINES * (self.line_s or 0), LIMIT_PAUSES * max(self.pauses, default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietObservation:
    """How long the train has been quiet, and the limit."""

    train: str
    attempt: str = ""
    """Empty if no task runs."""
    phase: str = ""
    step: int = 0
    since: datetime | None = None
    limit_s: float = 0.0
    tolerance_s: float = 0.0
    evidence: tuple[str, ...] = ()
    silent: str = ""
    """The ranks that do not answer."""

    def is_hang(self, now: datetime) -> bool:
        return self.since is not None and now - self.since > timedelta(seconds=self.limit_s + self.tolerance_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class HangEvidence:
    """The stacks of one silence."""

    since: str = ""
    """Attempt and begin of the silence."""
    lines: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    """The ranks that do not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangMemory:
    log: LogPlace | None = None
    rhythm: Rhythm | None = None
    beat: tuple[str, ...] = ()
    """The heartbeat's stamp from the future, and when it was first read."""
    evidence: HangEvidence = HangEvidence()


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


class Hang:
    name: ClassVar[str] = "hang"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = True

    def probe(self, context: WatchContext, target: WatchedTrain) -> QuietObservation:
        job, attempt = target.running, target.attempt
        before = context.memory.recall(HangMemory, self.name, target.name)
        if job is None or attempt is None:
            # The same attempt may run again, such as after a suspension: its rhythm then starts anew.
            rhythm = replace(before.rhythm, attempt="") if before.rhythm else None
            context.memory.remember(self.name, target.name, replace(before, rhythm=rhythm))
            return QuietObservation(train=target.name)
        lines, place = new_iterations(target.run.main_log, before.log, target.config.progress.pattern)
        rhythm = learn(before.rhythm, target, job, attempt, lines, now=context.now)
        heartbeat = read_heartbeat(target.run.heartbeat / "train.json")
        beat: tuple[str, ...] = ()
        if heartbeat:
            at = datetime.fromtimestamp(heartbeat.at, UTC)
            at, beat = date_by_first_sight(at, context.now, before.beat)
            heartbeat = replace(heartbeat, at=at.timestamp())
        quiet = _quiet(context, target, rhythm, heartbeat)
        evidence = before.evidence
        if quiet.is_hang(context.now):
            evidence = self._evidence(context, target, quiet, evidence)
            quiet = replace(quiet, evidence=evidence.lines, silent="".join(evidence.silent))
        remembered = HangMemory(log=place, rhythm=rhythm, beat=beat, evidence=evidence)
        context.memory.remember(self.name, target.name, remembered)
        return quiet

    def _evidence(
        self, context: WatchContext, train: WatchedTrain, quiet: QuietObservation, before: HangEvidence
    ) -> HangEvidence:
        """Request stacks once per silence, before the task is cancelled."""
        since = f"{quiet.attempt} {quiet.since}"
        job, attempt, watch = train.running, train.attempt, train.config.watch
        if before.since == since or not context.acts or not train.run.is_ours or attempt is None or job is None:
            return before
        target = attempt.path / "evidence" / f"hang-{context.now:%Y%m%dT%H%M%S}"
        ranks, lines, silent = train.config.world_size, [], []
        try:
            request_by_file(attempt, target, ranks=ranks, timeout_s=watch.stacks_seconds, clock=context.clock)
            dump = list_processes(watch.py_spy, job, attempt, target, context.runner)
            silent = find_silent(target, job, dump, ranks=ranks, ranks_per_node=train.config.slurm.processes_per_node)
            lines = [*silent, *summarize_stacks(target, ranks=ranks), *dump.problems]
        except OSError as error:
            lines.append(f"stacks could not be stored: {error}")
        return HangEvidence(since=since, lines=tuple(lines), silent=tuple(silent[:1]))

    def judge(self, observation: QuietObservation, now: datetime) -> list[Finding]:
        train, is_hang = observation.train, observation.is_hang(now)
        says = state("hang.no_task", train=train)
        if observation.since is not None:
            says = state(
                "hang.hangs" if is_hang else "hang.alive",
                train=train,
                attempt=observation.attempt,
                phase=observation.phase,
                step=observation.step,
                age_s=(now - observation.since).total_seconds(),
                limit_s=observation.limit_s,
                silent=observation.silent,
            )
        task = f"{train}_{observation.attempt.rpartition('.')[0].rpartition('_')[2]}"
        stop = advise("remedy.hang", ("opsctl", "stacks", train), ("opsctl", "cancel", task))
        return [
            Finding(
                key=f"{self.name}/{train}",
                severity=Severity.CRITICAL if is_hang else Severity.OK,
                says=says,
                train=train,
                since=observation.since,
                evidence=observation.evidence,
                fix=stop if is_hang else NO_REMEDY,
            )
        ]


def learn(
    before: Rhythm | None, train: WatchedTrain, job: Job, attempt: Attempt, lines: list[Iteration], *, now: datetime
) -> Rhythm:
    """Return the rhythm after this cycle."""
    is_new = before is None or before.attempt != attempt.name
    before = before or Rhythm(since=now, checked_at=now)
    # A time from the future comes from a broken clock.
    before = replace(before, since=min(before.since, now), checked_at=min(before.checked_at, now))
    step, directories = lines[-1].step if lines else before.step, find_directories(train.run, train.config)
    saved = scan_directories(directory.path for directory in directories).changed_ns / 1e9  # also unfinished ones
    line_s = _line_s(lines) or before.line_s
    rhythm = replace(before, attempt=attempt.name, step=step, saved=saved, checked_at=now, line_s=line_s)
    if is_new:
        # These lines may belong to the previous attempt: only the job's start and the log's time count.
        since = max(filter(None, (job.start, _log_time(train, now))), default=now)
        return replace(rhythm, since=min(since, now), is_starting=True)
    if (step, saved) == (before.step, before.saved) and not lines:
        return replace(before, checked_at=now)
    # The pause ends at the last check: no watch cycle may have run for hours since then.
    pause = (before.checked_at - before.since).total_seconds()
    pauses = before.pauses
    if pause > 0 and not before.is_starting:
        pauses = (*pauses, pause)[-MAX_PAUSES_REMEMBERED:]
    return replace(rhythm, since=now, is_starting=False, pauses=pauses)


def _log_time(train: WatchedTrain, now: datetime) -> datetime | None:
    """Return when the log was last written: the latest possible progress at the first check."""
    try:
        return min(now, datetime.fromtimestamp(train.run.main_log.stat().st_mtime, UTC))
    except OSError:
        return None


def _line_s(lines: list[Iteration]) -> float | None:
    """Return the median seconds between two lines, from the step times in the lines."""
    known = [(b.step - a.step) * b.step_s for a, b in pairwise(lines) if b.step_s and b.step > a.step]
    return median(known) if known else None


def _quiet(context: WatchContext, train: WatchedTrain, rhythm: Rhythm, heartbeat: Heartbeat | None) -> QuietObservation:
    """Use the later of heartbeat and log: a full disk stops heartbeats, some trainers print no lines."""
    watch = train.config.watch
    limit_s = watch.init_minutes * 60 if rhythm.is_starting else rhythm.limit_s
    quiet = QuietObservation(
        train=train.name,
        attempt=rhythm.attempt,
        phase="starting" if rhythm.is_starting else "training",
        step=rhythm.step,
        since=rhythm.since,
        limit_s=limit_s,
        tolerance_s=context.site.watch.clock_tolerance_seconds,
    )
    if heartbeat and heartbeat.attempt == rhythm.attempt:
        limit_s, at = heartbeat.limit_s, datetime.fromtimestamp(heartbeat.at, UTC)
        quiet = replace(
            quiet, phase=heartbeat.phase.value, step=max(heartbeat.step, rhythm.step), limit_s=heartbeat.limit_s
        )
        quiet = replace(quiet, since=at if rhythm.is_starting else max(at, rhythm.since))
    # hang_minutes applies to steps: starting, saving and evaluating have limits of their own.
    if watch.hang_minutes and quiet.phase in {"training", Phase.TRAIN}:
        quiet = replace(quiet, limit_s=watch.hang_minutes * 60)
    return quiet


def summarize_stacks(target: Path, *, ranks: int) -> list[str]:
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


def list_answered(target: Path) -> set[int]:
    """Return the ranks that wrote their own stack into `target`."""
    ranks = set()
    for path in target.glob("*.txt"):
        origin = origin_of_file(f"{path.stem}.log")
        if path.name != FILE_NAME and origin.rank is not None:
            ranks.add(origin.rank)
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
    if len(lines) <= MAX_SILENT_LINES:
        return lines
    return [*lines[:MAX_SILENT_LINES], f"{len(lines) - MAX_SILENT_LINES} more groups of ranks do not answer"]
