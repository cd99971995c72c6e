"""Publish one train."""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import SecretStr

from opsctl.alerts.channel_secrets import reveal
from opsctl.alerts.outbox import Undelivered
from opsctl.base.errors import InputError, OpsctlError, writing
from opsctl.base.nodesets import hostname
from opsctl.base.ports import Clock, Runner
from opsctl.base.secret_formats import Secrets, all_forms, find_in_environment
from opsctl.publish.git_push import Git
from opsctl.publish.sources import PublishedFile, find_sources, mark_of, read
from opsctl.publish.staging import Stage, StagedFile, TimeLimit
from opsctl.settings.alerts import AlertSettings
from opsctl.settings.field_types import SettingsTable
from opsctl.settings.publish import PublishTable, fill
from opsctl.state.journal import actor
from opsctl.state.lease import lease, refreshed
from opsctl.state.run_dir import RunDir

MAX_MESSAGE_LINES = 3
SOURCE_GONE = "its source no longer exists, and the copy may hold secrets configured since"


class NotShipped(OpsctlError):
    """The command of [publish] failed."""


Reports = Callable[[], Mapping[str, str]]
"""Texts of reports by file name. The names are from REPORTS."""
REPORTS = ("report.md", "report.html", "dash.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The result for one train."""

    train: str
    to: str
    items: tuple[StagedFile, ...]
    shipped: bool
    """Whether anything was published; False without changes, and on a dry run."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Publishes one train by the rules of its [publish] table."""

    run: RunDir
    table: PublishTable
    root: Path
    """The directory of all trains. Nothing is published into this directory."""
    secrets: Secrets
    reports: Reports
    runner: Runner
    clock: Clock
    deadline: TimeLimit

    @property
    def to(self) -> str:
        """The destination, for people."""
        if self.table.to == "path":
            return str(self.directory)
        if self.table.to == "git":
            return f"{self.table.remote} {self.table.branch}"
        return self.table.command

    @property
    def directory(self) -> Path:
        """The directory of the copies: the destination itself, or a staging directory for git or the command."""
        if self.table.to == "path":
            return Path(_expand(self.table.path)) / self.run.name
        return self.home / "tree" / self.run.name

    @property
    def home(self) -> Path:
        return self.run.path / "publish"

    def plan(self) -> Published:
        """Return what `publish` would do, as far as known without reading the files."""
        self._check()
        stage = self._stage()
        items = [_plan_file(stage, source) for source in self._sources()]
        mark = self._report_mark()
        for name in REPORTS if self.table.report else ():
            items.append(StagedFile(name=name, action="unchanged" if stage.is_current(name, mark) else "would copy"))
        return Published(train=self.run.name, to=self.to, items=tuple(items), shipped=False)

    def publish(self) -> Published:
        """Copy and publish changed files. After a kill, the next call continues and reaches the same result.

        Raises DeadlinePassed when time runs out, OpsctlError for any other failure.
        """
        self._check()
        with writing(self.home):
            self.home.mkdir(mode=0o755, exist_ok=True)
        with lease(self.home, self.clock) as held, refreshed(held):
            stage = self._stage()
            try:
                items = self._copy(stage)
                shipped, detail = self._ship(stage, items)
            finally:
                stage.save()
        return Published(train=self.run.name, to=self.to, items=tuple(items), shipped=shipped, detail=detail)

    def _check(self) -> None:
        if self.table.to != "path":
            return
        target = self.directory.resolve()
        if self.root.resolve() in target.parents or self.run.path.resolve() in (target, *target.parents):
            raise InputError(
                f"[publish] path: {target} lies inside the directory of the trains", hint="choose another directory"
            )

    def _stage(self) -> Stage:
        rules = f"{self.table.max_file} {self.directory} {self.to}"
        stage = Stage(
            directory=self.directory,
            state=self.home / "state.json",
            secrets=self.secrets.digest,
            rules=hashlib.sha256(rules.encode(errors="surrogateescape")).hexdigest(),
            deadline=self.deadline,
        )
        stage.open()
        return stage

    def _sources(self) -> list[PublishedFile]:
        return find_sources(self.run, self.table.files, most=self.table.max_file)

    def _copy(self, stage: Stage) -> list[StagedFile]:
        sources = self._sources()
        stage.sweep([source.name for source in sources])
        items = []
        for source in sources:
            has_secret = self.secrets.strike_text(source.name) != source.name.encode(errors="replace").decode()
            if refused := "its name holds a secret" if has_secret else source.refused:
                items.append(stage.refuse(source.name, refused))
            else:
                make = partial(read, source, self.table.max_file, self.secrets)
                items.append(stage.put(source.name, source.mark, make, left_out=source.left_out))
        if self.table.report:
            items += self._copy_reports(stage)
        return [*items, *(stage.refuse(name, SOURCE_GONE) for name in stage.doubtful)]

    def _copy_reports(self, stage: Stage) -> Iterator[StagedFile]:
        """Copy the reports. A report stays current while the log and the journal are unchanged, even as time passes."""
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
            existing = [name for name in stage.copies if (stage.directory / name).is_file()]
            refused = [item.name for item in items if item.action == "refused"]
            commit = self._git().push(stage.directory, self.run.name, existing, refused)
            return bool(commit), commit[:12]
        if self.table.to == "command":
            if stage.digest == stage.shipped:
                return False, ""
            detail = self._run_command(stage.directory)
            stage.shipped = stage.digest
            return True, detail
        return any(item.action == "copied" for item in items), ""

    def _git(self) -> Git:
        return Git(
            runner=self.runner,
            secrets=self.secrets,
            deadline=self.deadline,
            home=self.home / "repo.git",
            remote=_expand(self.table.remote),
            branch=self.table.branch,
            author=f"{actor()}@{hostname()}",
        )

    def _run_command(self, directory: Path) -> str:
        """Run the configured command; return its last line of output."""
        filled = fill(self.table.command, {"source": str(directory), "train": self.run.name})
        completed = self.deadline.run(self.runner, ("sh", "-c", filled), "the command")
        lines = self.secrets.strike_text(completed.err or completed.out).strip().splitlines()
        if completed.code:
            why = " / ".join(lines[-MAX_MESSAGE_LINES:])
            raise NotShipped(
                f"the command failed with exit code {completed.code}: {why}", hint="check [publish] command"
            )
        return lines[-1] if lines else ""


def _plan_file(stage: Stage, source: PublishedFile) -> StagedFile:
    if source.refused:
        return StagedFile(name=source.name, action="refused", why=source.refused)
    return StagedFile(
        name=source.name,
        action="unchanged" if stage.is_current(source.name, source.mark) else "would copy",
        size=source.size - source.left_out,
        left_out=source.left_out,
    )


def _expand(text: str) -> str:
    """Expand `~` and variables in a path; return a URL unchanged."""
    return str(Path(os.path.expandvars(text)).expanduser()) if text[:1] in ("~", "$", "/") else text


def _mark(paths: list[Path]) -> str:
    """Return a text that changes when one of the files is written to or replaced."""
    marks = []
    for path in paths:
        with contextlib.suppress(OSError):
            marks.append(mark_of(path.stat()))
    return " ".join(marks)


_SETTING = re.compile(r"\s*(?:export\s+)?\w+=(.{4,})")
"""A line of a shell file: `export NAME=value`."""


class UnreadableSecret(OpsctlError):
    """A configured secret cannot be read, so no file can be checked for this secret."""


def gather_secrets(
    alerts: AlertSettings, files: Iterable[str], *, of_train: Mapping[str, str], of_process: Mapping[str, str]
) -> Secrets:
    """Collect the configured secrets, and the secrets in the environments of the train and of this process.

    Raises UnreadableSecret if a configured secret cannot be read. Nothing is published then.
    """
    known = [*_of_alerts(alerts), *_of_files(files), *find_in_environment(of_train)]
    return Secrets(all_forms(known), passing=all_forms(find_in_environment(of_process)))


def _of_alerts(alerts: AlertSettings) -> Iterator[str]:
    tables: list[SettingsTable] = [alerts, *alerts.channels.values()]
    for table in tables:
        for field in type(table).model_fields:
            if isinstance(getattr(table, field), SecretStr):
                try:
                    yield reveal(table, field)
                except Undelivered as error:
                    raise UnreadableSecret(
                        f"nothing is published: a configured secret cannot be read: {error.message}",
                        hint="opsctl must know a secret to strike it out of published files",
                    ) from error


def _of_files(files: Iterable[str]) -> Iterator[str]:
    for file in files:
        try:
            lines = Path(os.path.expandvars(file)).expanduser().read_text(errors="surrogateescape").splitlines()
        except OSError as error:
            raise UnreadableSecret(
                f"nothing is published: a configured secret cannot be read: {file}: {error.strerror}",
                hint="check [publish] secret_files",
            ) from error
        for line in lines:
            yield line
            if setting := _SETTING.fullmatch(line):
                yield setting[1].strip("\"'")
