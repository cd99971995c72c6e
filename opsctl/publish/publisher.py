"""Publish one train."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opsctl.errors import InputError, OpsctlError, cannot_write
from opsctl.host.system import hostname
from opsctl.ports import Clock, Runner, TimedOut
from opsctl.publish.git_push import Git
from opsctl.publish.redaction import Secrets
from opsctl.publish.sources import PublishedFile, find_sources, read
from opsctl.publish.staging import DeadlinePassed, Stage, StagedFile, TimeLimit
from opsctl.settings.publish import PublishTable, fill
from opsctl.state.journal import actor
from opsctl.state.lease import HeldLease, LeaseBusy, lease
from opsctl.state.run_dir import RunDir

BEAT_S = 30.0
"""How often the lease is refreshed: others break it after two minutes."""
MOST_SAID = 3
GONE = "its source is gone, and secrets that are known now may be in the copy"


class NotShipped(OpsctlError):
    """The command of [publish] failed."""


Reports = Callable[[], Mapping[str, str]]
"""Texts to publish too, by the names of their files, which are some of REPORTS."""
REPORTS = ("report.md", "report.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What became of one train."""

    train: str
    to: str
    items: tuple[StagedFile, ...]
    shipped: bool
    """Whether anything was handed on; False if all was there already, or on a dry run."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Publishes one train by its rules."""

    run: RunDir
    table: PublishTable
    root: Path
    """Below which all trains lie: nothing is published into it."""
    secrets: Secrets
    reports: Reports
    runner: Runner
    clock: Clock
    deadline: TimeLimit

    @property
    def to(self) -> str:
        return {"path": str(self.directory), "git": f"{self.table.remote} {self.table.branch}"}.get(
            self.table.to, self.table.command
        )

    @property
    def directory(self) -> Path:
        """Where the copies are made: the place itself, or here, for git and a command to take them from."""
        if self.table.to == "path":
            return Path(_expanded(self.table.path)) / self.run.name
        return self.home / "tree" / self.run.name

    @property
    def home(self) -> Path:
        return self.run.path / "publish"

    def plan(self) -> Published:
        """What `publish` would do, as far as that is known without reading the files."""
        self._check()
        stage = self._stage()
        items = [
            StagedFile(name=source.name, action="refused", why=source.refused)
            if source.refused
            else StagedFile(
                name=source.name,
                action="unchanged" if stage.is_current(source.name, source.mark) else "would copy",
                size=source.size - source.left_out,
                left_out=source.left_out,
            )
            for source in self._sources()
        ]
        mark = self._report_mark()
        for name in REPORTS if self.table.report else ():
            items.append(StagedFile(name=name, action="unchanged" if stage.is_current(name, mark) else "would copy"))
        return Published(train=self.run.name, to=self.to, items=tuple(items), shipped=False)

    def publish(self) -> Published:
        """Copy what has changed and hand it on. Killed anywhere, the next call goes on and comes to the same.

        Raises OpsctlError where it cannot, Late when its time is over.
        """
        self._check()
        try:
            self.home.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.home, error) from error
        with lease(self.home, self.clock) as held, _kept(held):
            stage = self._stage()
            try:
                items = self._copied(stage)
                done, detail = self._ship(stage, items)
            finally:
                stage.save()
        return Published(train=self.run.name, to=self.to, items=tuple(items), shipped=done, detail=detail)

    def _check(self) -> None:
        target, root = self.directory.resolve(), self.root.resolve()
        if self.table.to == "path" and (root in target.parents or self.run.path.resolve() in (target, *target.parents)):
            raise InputError(f"[publish] path: {target} lies where trains are, whose own files it would replace")

    def _stage(self) -> Stage:
        rules = f"{self.table.max_file} {self.directory} {self.to}"
        stage = Stage(
            directory=self.directory, state=self.home / "state.json", secrets=self.secrets.digest,
            rules=hashlib.sha256(rules.encode(errors="surrogateescape")).hexdigest(), deadline=self.deadline,
        )  # fmt: skip
        stage.open()
        return stage

    def _sources(self) -> list[PublishedFile]:
        return find_sources(self.run, self.table.files, most=self.table.max_file)

    def _copied(self, stage: Stage) -> list[StagedFile]:
        published_files = self._sources()
        stage.sweep([published_file.name for published_file in published_files])
        items = []
        for published_file in published_files:
            if published_file.refused:
                items.append(stage.refuse(published_file.name, published_file.refused))
            else:
                made = stage.put(
                    published_file.name,
                    published_file.mark,
                    partial(self._read, published_file),
                    left_out=published_file.left_out,
                )
                items.append(made)
        items += self._reported(stage) if self.table.report else []
        return [*items, *(stage.refuse(name, GONE) for name in stage.doubtful)]

    def _read(self, source: PublishedFile) -> tuple[bytes, int]:
        return read(source, self.table.max_file, self.secrets)

    def _reported(self, stage: Stage) -> Iterator[StagedFile]:
        """What the reports are made from has not changed: nor have they, whatever the time is now."""
        mark = self._report_mark()
        known = [name for name in REPORTS if name in stage.copies]
        if known and all(stage.is_current(name, mark) for name in known):
            texts: Mapping[str, str] = dict.fromkeys(known, "")
        else:
            texts = self.reports()
        stage.sweep(texts)
        for name, text in texts.items():
            yield stage.put(name, mark, partial(self.secrets.strike, text.encode(errors="replace")))

    def _report_mark(self) -> str:
        return _mark([self.run.main_log, *sorted(self.run.journal.glob("*.jsonl"))])

    def _ship(self, stage: Stage, items: list[StagedFile]) -> tuple[bool, str]:
        if self.table.to == "git":
            there = [name for name in stage.copies if (stage.directory / name).is_file()]
            commit = self._git().push(stage.directory, self.run.name, there, _refused(items))
            return bool(commit), commit[:12]
        if self.table.to == "command":
            if stage.digest == stage.shipped:
                return False, ""
            detail = self._command(stage.directory)
            stage.shipped = stage.digest
            return True, detail
        return any(item.action == "copied" for item in items), ""

    def _git(self) -> Git:
        return Git(
            runner=self.runner, secrets=self.secrets, deadline=self.deadline, home=self.home / "repo.git",
            remote=_expanded(self.table.remote), branch=self.table.branch, author=f"{actor()}@{hostname()}",
        )  # fmt: skip

    def _command(self, directory: Path) -> str:
        """The last line that it says."""
        filled = fill(self.table.command, {"source": str(directory), "train": self.run.name})
        try:
            done = self.runner.run(("sh", "-c", filled), timeout=self.deadline.left())
        except TimedOut as error:
            raise DeadlinePassed(
                f"the command did not end within what was left of {self.deadline.seconds:g} s"
            ) from error
        lines = self.secrets.strike_text(done.err or done.out).strip().splitlines()
        if done.code:
            why = " / ".join(lines[-MOST_SAID:])
            raise NotShipped(f"the command ended with {done.code}: {why}", hint="[publish] command")
        return lines[-1] if lines else ""


def _refused(items: list[StagedFile]) -> list[str]:
    return [item.name for item in items if item.action == "refused"]


def _expanded(text: str) -> str:
    return str(Path(os.path.expandvars(text)).expanduser()) if text[:1] in ("~", "$", "/") else text


def _mark(paths: list[Path]) -> str:
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            stat = path.stat()
            found.append(f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}")
    return " ".join(found)


@contextlib.contextmanager
def _kept(held: HeldLease) -> Iterator[None]:
    """Refresh the lease while this block lasts, whatever it waits for."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            with contextlib.suppress(LeaseBusy):
                held.refresh()

    thread = threading.Thread(target=beat, daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
