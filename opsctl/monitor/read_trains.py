"""Read what the watchdogs of a cycle need: the queue, the trains and the nodes, each once."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from opsctl.alerts.dispatch import Alerting
from opsctl.alerts.ledger_state import LedgerEntry
from opsctl.alerts.transitions import SITE_FILES, SITE_ROOT, SITE_SLURM
from opsctl.app import App
from opsctl.base.errors import OpsctlError, RunDirError
from opsctl.base.findings import Finding, Severity
from opsctl.base.model import Job, Node
from opsctl.base.ports import Watchdog
from opsctl.base.statements import state, type_now
from opsctl.host.isolation import Failed, Isolation
from opsctl.host.system import user_name
from opsctl.launch.train_arrays import take_snapshot
from opsctl.monitor.cycle_report import CycleProblems
from opsctl.monitor.damaged_files import list_damages
from opsctl.settings.field_types import NAME
from opsctl.settings.loader import TrainSettings, parse, read_toml
from opsctl.state.run_dir import RunDir, all_trains
from opsctl.watchdogs.context import WatchContext, WatchdogMemory, WatchedTrain
from opsctl.watchdogs.node_health import is_node_alert
from opsctl.watchdogs.slurm_status import find_related_jobs

Unit = tuple[str, str]
"""Names of a watchdog and of its target: a train, a file system or `site`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReader:
    """Reads for one cycle. A file system that hangs costs the trains on it, not the cycle."""

    app: App
    isolation: Isolation[Unit, Any]
    problems: CycleProblems
    watchdogs: Mapping[str, Watchdog[WatchContext, Any, Any]]
    acts: bool

    def _watches(self, of: str) -> bool:
        return self.acts or any(watchdog.of == of for watchdog in self.watchdogs.values())

    def list_runs(self, trains: Collection[str], memory: WatchdogMemory) -> tuple[list[RunDir], list[Finding]]:
        """Return the trains in `trains`, or else all, and a finding if the root cannot be listed, or can be again.

        While the root cannot be listed in time, these are the trains of an earlier list. Neither is returned if only
        watchdogs of the site are asked.
        """
        if not (self._watches("train") or self._watches("filesystem")):
            return [], []
        root = self.app.site.root_path
        if trains:
            return [RunDir(root / name) for name in sorted(set(trains))], []
        answer = self.isolation.run({("root", "site"): partial(all_trains, root)})["root", "site"]
        (known, inode), runs = recall(memory, root), [] if isinstance(answer, Failed) else answer
        if problem := answer.why if isinstance(answer, Failed) else find_other_root(known, inode, root, runs):
            self.problems.fail(f"{root} cannot be listed: {problem}")
            return known, [judge_root(problem, known)]
        # An entry that was a train, and is a link or a file now, is reported until it is gone; a train that needs tasks
        # and is gone, until a person acknowledges that.
        ended, entries = recall_ended(memory), read_entries(self.app.alerting)
        known = [run for run in known if run not in runs]
        runs += [
            run for run in known if os.path.lexists(run.path) or not (run.name in ended or _is_known(run, entries))
        ]
        if self.acts:
            remember(memory, root, runs)
        unit = "files", "site"
        lines = self.isolation.run({unit: self.app.history.list_unreadable})[unit]
        findings = [judge_root("", runs), judge_files([lines.why] if isinstance(lines, Failed) else lines)]
        return runs, drop_usual(findings, entries)

    def read_queue(self) -> tuple[list[Job] | None, list[Finding]]:
        """Return the whole queue and one finding about Slurm; the queue is None if Slurm does not answer.

        Nothing is found if only watchdogs are asked that need no Slurm.
        """
        is_needed = self.acts or any(watchdog.needs_slurm for watchdog in self.watchdogs.values())
        found = Finding(key=SITE_SLURM, severity=Severity.OK, says=state("site.slurm_answers"))
        jobs: list[Job] | None = None
        try:
            jobs = self.app.slurm.jobs()
        except OpsctlError as error:
            self.problems.is_complete = False
            says = state("site.slurm_silent", problem=error.message)
            found = replace(found, severity=Severity.UNKNOWN, says=says, fix=type_now(("opsctl", "doctor")))
        return jobs, [found] if is_needed else []

    def collect(
        self, runs: Sequence[RunDir], jobs: Sequence[Job] | None, memory: WatchdogMemory
    ) -> tuple[WatchContext, list[Finding]]:
        """Return the input of the watchdogs, and one finding per unreadable train."""
        results = self.isolation.run({("train", run.name): partial(self._read_train, run, jobs) for run in runs})
        trains = {name: train for (_, name), train in results.items() if not isinstance(train, Failed)}
        unreadable = [
            Finding(
                key=f"train/{name}",
                severity=Severity.WARNING,
                says=state("site.not_watched", train=name, why=result.why),
                train=name,
                evidence=result.traceback,
            )
            for (_, name), result in results.items()
            if isinstance(result, Failed)
        ]
        entries = read_entries(self.app.alerting)
        damaged = [judge_files(train.damages, train.name) for train in trains.values()]
        unreadable += drop_usual(damaged, entries)
        app = self.app
        context = WatchContext(
            site=app.site,
            now=app.clock.now(),
            clock=app.clock,
            runner=app.engine_runner,
            memory=memory,
            site_dir=app.alerting.site.path,
            trains=tuple(trains.values()),
            nodes=self._read_nodes(tuple(trains.values()), answers=jobs is not None),
            acts=self.acts,
        )
        if self.acts and jobs is not None:
            note_ended(memory, {train.name: train.is_over and not train.damages for train in context.trains})
        return context, unreadable if self._watches("train") else []

    def _read_train(self, run: RunDir, jobs: Sequence[Job] | None) -> WatchedTrain:
        if not os.path.lexists(run.path):
            command = f"opsctl alerts ack train/{run.name} --reason removed"
            raise RunDirError(f"{run.path} is gone; if you removed it: {command}")
        if why := run.why_no_train:
            raise RunDirError(f"{run.path}: no train: {why}")
        config = parse(TrainSettings, read_toml(run.config), str(run.config))
        journal = self.app.journal(run)
        events = tuple(journal.events())
        if not events and run.attempts():
            raise RunDirError(f"{run.journal}: the journal is gone")
        damages = tuple(list_damages(journal))
        if jobs is None:
            return WatchedTrain(run=run, config=config, snapshot=None, damages=damages)
        snapshot = take_snapshot(run, journal, jobs)
        ours = {job.id for job in snapshot.jobs}
        also = find_related_jobs(config.watch.also_jobs, tuple(jobs), user_name(run.path.stat().st_uid), ours)
        return WatchedTrain(run=run, config=config, snapshot=snapshot, also=also, events=events, damages=damages)

    def _read_nodes(self, trains: Sequence[WatchedTrain], *, answers: bool) -> tuple[Node, ...] | None:
        """Return every node if a train runs or a node's alert is open; None if Slurm does not answer."""
        is_running = any(train.snapshot and train.snapshot.active for train in trains)
        if "node_health" not in self.watchdogs or not (is_running or (answers and self._has_node_alert())):
            return ()
        try:
            return tuple(self.app.slurm.nodes())
        except OpsctlError as error:
            self.problems.fail(error.message)
            return None

    def _has_node_alert(self) -> bool:
        entries = read_entries(self.app.alerting)
        return any(entry.is_open and is_node_alert(key) for key, entry in entries.items())


def drop_usual(findings: Iterable[Finding], entries: Mapping[str, LedgerEntry]) -> list[Finding]:
    """Return the findings that are not ok, or are ok again."""
    is_open = {key for key, entry in entries.items() if entry.is_open}
    return [finding for finding in findings if not finding.is_ok or finding.key in is_open]


def _is_known(run: RunDir, entries: Mapping[str, LedgerEntry]) -> bool:
    """Whether a person has acknowledged what is reported about this train."""
    entry = entries.get(f"train/{run.name}")
    return bool(entry and entry.acknowledged)


def read_entries(alerting: Alerting) -> dict[str, LedgerEntry]:
    """Return the entries of the alert ledger; none if the ledger cannot be read."""
    try:
        return alerting.ledger.entries()
    except OpsctlError:
        return {}


MAX_REMEMBERED = 10_000
_PLACE, _COPY, _ENDED = ("site", "trains"), ("site", "root"), ("site", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTrains:
    """Names of trains, and the inode of the root that had them."""

    names: tuple[str, ...] = ()
    inode: int = 0


def remember(memory: WatchdogMemory, root: Path, runs: Sequence[RunDir]) -> None:
    """Remember the list; also outside of the root, since a root that is gone takes with it what lies there."""
    listed = ListedTrains(names=tuple(run.name for run in runs[:MAX_REMEMBERED]), inode=_read_inode(root))
    memory.remember(*_PLACE, listed)
    if memory.spare:
        WatchdogMemory(memory.spare, memory.problems).remember(*_COPY, listed)


def recall(memory: WatchdogMemory, root: Path) -> tuple[list[RunDir], int]:
    """Return the trains that were listed last, perhaps removed since, and the inode of the root that had them."""
    copy = WatchdogMemory(memory.spare or memory.directory)
    listed = memory.find(ListedTrains, *_PLACE) or copy.recall(ListedTrains, *_COPY)
    return [RunDir(root / name) for name in listed.names[:MAX_REMEMBERED] if NAME.fullmatch(name)], listed.inode


def has_listed(spare: Path) -> bool:
    """Whether this user has listed the root before as the owner of its alerts, and so goes on where it is gone."""
    return WatchdogMemory(spare).find(ListedTrains, *_COPY) is not None


def note_ended(memory: WatchdogMemory, ended: Mapping[str, bool]) -> None:
    """Remember which of these trains need no task any more, and may therefore be removed without a word."""
    names = sorted((recall_ended(memory) - ended.keys()).union(name for name in ended if ended[name]))
    memory.remember(*_ENDED, ListedTrains(names=tuple(names[:MAX_REMEMBERED])))


def recall_ended(memory: WatchdogMemory) -> frozenset[str]:
    return frozenset(memory.recall(ListedTrains, *_ENDED).names)


def find_other_root(known: Collection[RunDir], inode: int, root: Path, runs: Collection[RunDir]) -> str:
    """Return why `root` is not the directory that had the `known` trains, such as one below a mount that is gone."""
    is_other = bool(known and inode) and not any(run in known for run in runs) and inode != _read_inode(root)
    return f"{root}: another directory than before: is the file system mounted?" if is_other else ""


def _read_inode(root: Path) -> int:
    with suppress(OSError):
        return root.stat().st_ino
    return 0


def judge_root(problem: str, runs: Sequence[RunDir]) -> Finding:
    """Return the finding about the list of trains. `problem` is why the root cannot be listed; empty if it was."""
    if not problem:
        return Finding(key=SITE_ROOT, severity=Severity.OK, says=state("site.root_listed"))
    says = state("site.root_unlisted", problem=problem, trains=len(runs))
    return Finding(key=SITE_ROOT, severity=Severity.CRITICAL, says=says, fix=type_now(("opsctl", "doctor")))


def judge_files(unreadable: Sequence[str], train: str = "") -> Finding:
    """Return the finding about the files of the site, or of a train, of which a line each describes those that cannot
    be read."""
    key, words = (f"files/{train}", {"train": train}) if train else (SITE_FILES, {})
    if not unreadable:
        return Finding(key=key, severity=Severity.OK, says=state("site.files_read", **words), train=train)
    says = state("site.files_unread", files=len(unreadable), first=unreadable[0], **words)
    fix = type_now(("opsctl", "status", train) if train else ("opsctl", "nodes"))
    return Finding(key=key, severity=Severity.CRITICAL, says=says, train=train, evidence=tuple(unreadable), fix=fix)
