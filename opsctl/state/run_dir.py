"""Paths of a run directory, their permissions, and the check that only the owner can write them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from opsctl.errors import InputError, RunDirError, cannot_write
from opsctl.settings.field_types import check_name
from opsctl.state.files import write_atomic

SHARED = ("switches", "requests")
"""The only directories that other users, those of the site's group, can write."""

MAX_NAMED_TRAINS = 10
"""Train names in a message."""

OWNED = ("journal", "heartbeat", "logs", "attempts", "checkpoints", "revisions")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The directory of one attempt: `<array>_<task>.<restart>`, or `<job>.<restart>` outside an array."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def job(self) -> str:
        """The id of the task in Slurm's notation: `12_3`."""
        return self.name.rpartition(".")[0]

    @property
    def array(self) -> str:
        return self.job.partition("_")[0]

    @property
    def task(self) -> int | None:
        """The array index; None outside an array."""
        task = self.job.partition("_")[2]
        return int(task) if task else None

    @property
    def restart(self) -> int:
        return int(self.name.rpartition(".")[2])

    @property
    def start(self) -> Path:
        return self.path / "start.json"

    @property
    def end(self) -> Path:
        """The last file to be written. An attempt without end.json is not finalized."""
        return self.path / "end.json"

    @property
    def stop_request(self) -> Path:
        return self.path / "stop-request"

    @property
    def stop_reason(self) -> Path:
        return self.path / "stop-reason.json"

    @property
    def finished(self) -> Path:
        """The file with which a trainer says that the training is over."""
        return self.path / "finished"

    @property
    def deadline(self) -> Path:
        return self.path / "deadline"

    @property
    def body_exit(self) -> Path:
        """The exit code of the body, written by the guard."""
        return self.path / "body-exit"

    @property
    def stacks_request(self) -> Path:
        return self.path / "stacks-request"

    @property
    def repro(self) -> Path:
        return self.path / "repro"


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run directory. Properties are paths and touch nothing."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "train.toml"

    @property
    def trainer_config(self) -> Path:
        return self.path / "trainer.json"

    @property
    def wrapper(self) -> Path:
        return self.path / "wrapper.slurm"

    @property
    def body(self) -> Path:
        return self.path / "body.sh"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def switches(self) -> Path:
        return self.path / "switches"

    @property
    def requests(self) -> Path:
        return self.path / "requests"

    @property
    def heartbeat(self) -> Path:
        return self.path / "heartbeat"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def main_log(self) -> Path:
        return self.logs / "main_log.txt"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def revisions(self) -> Path:
        return self.path / "revisions"

    def attempt(self, name: str) -> Attempt:
        return Attempt(self.path / "attempts" / name)

    def attempts(self) -> list[Attempt]:
        """Return every attempt that has a directory, unordered."""
        try:
            return [Attempt(path) for path in (self.path / "attempts").iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []

    def attempt_logs(self, attempt: str) -> Path:
        return self.logs / attempt

    @property
    def exists(self) -> bool:
        return self.config.is_file()

    @property
    def is_ours(self) -> bool:
        """Whether this user owns the run directory and may therefore act for the train. Raises OSError."""
        return self.path.stat().st_uid == os.geteuid()

    def create(self, group: str = "") -> None:
        """Make every directory. Idempotent. Raises RunDirError, and InputError for a group that does not exist."""
        try:
            for path in reversed((self.path, *self.path.parents)):
                # One by one: parents made implicitly would follow the umask and could be writable by the group.
                if not path.exists():
                    path.mkdir(exist_ok=True, mode=0o755)
                    if group:  # members of the group must reach the switches, whatever the umask
                        path.chmod(0o755)
            for literal in OWNED:
                self.make(self.path / literal)
            for literal in SHARED:
                (self.path / literal).mkdir(exist_ok=True)
                _share(self.path / literal, group)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def make(self, path: Path) -> None:
        """Make a directory and its parents, independent of the umask: writable by the owner only, readable like the run
        directory. Idempotent. Raises OSError."""
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o755 & stat.S_IMODE(self.path.stat().st_mode))

    def write(self, path: Path, data: str, *, mode: int = 0o644) -> None:
        """Write a file of the run directory atomically. Raises RunDirError."""
        try:
            write_atomic(path, data, mode=mode)
        except OSError as error:
            raise cannot_write(path, error) from error


def _share(directory: Path, group: str) -> None:
    if not group:
        directory.chmod(0o755)
        return
    try:
        shutil.chown(directory, group=group)
    except LookupError:
        raise InputError(f"group {group!r}: no such group", hint="`group` in site.toml") from None
    # set-gid: new files belong to the group. Not sticky: team members can disarm each other's switches.
    directory.chmod(0o2775)


def check_trusted(paths: Iterable[Path], *, root: Path | None = None) -> None:
    """Check that other users can write neither the paths nor their parents, up to `root` or /.

    Raises RunDirError with every offence. A directory with the sticky bit, such as /tmp, is no offence: users cannot
    replace files of other users there.
    """
    trusted = {0, os.geteuid()}
    offences: dict[Path, str] = {}
    for path in paths:
        for directory in (path, *path.absolute().parents):
            offences |= _find_offence(directory, trusted)
            if directory == root:
                break
    if offences:
        lines = "\n".join(f"  {path}: {why}" for path, why in offences.items())
        raise RunDirError(
            f"others could have written what would be run here as you:\n{lines}",
            hint="chmod go-w them, or set trust_parents = true in site.toml if you trust everyone who can write there",
        )


def _find_offence(path: Path, trusted: set[int]) -> dict[Path, str]:
    try:
        status = path.stat()
    except OSError as error:
        return {path: error.strerror or str(error)}
    if status.st_uid not in trusted:
        return {path: f"belongs to uid {status.st_uid}"}
    if status.st_mode & 0o022 and not (path.is_dir() and status.st_mode & stat.S_ISVTX):
        return {path: f"mode {stat.S_IMODE(status.st_mode):04o} lets others write"}
    return {}


def find(root: Path, text: str) -> RunDir:
    """Return the train by its name, its run directory, or the train.toml there. Raises InputError."""
    if not text:
        raise InputError("the name of the train is empty", hint="opsctl status lists all trains")
    path = Path(text)
    try:
        if path.name == "train.toml" and path.is_file():
            path = path.parent
        is_path = "/" in text or RunDir(path).exists
        run = RunDir(path.absolute() if is_path else root / _check_train_name(text))
        exists = run.exists
    except OSError as error:  # a name too long for a file, a directory without permission
        raise InputError(f"{text!r:.80}: {error.strerror}") from error
    if not exists:
        raise InputError(
            f"no train {text!r} below {root}; {_suggest(root, text)}", hint="opsctl status lists all trains"
        )
    return run


def _suggest(root: Path, text: str) -> str:
    """Return the nearest train name, if any, and the existing trains."""
    names = [train.name for train in all_trains(root)]
    near = get_close_matches(text, names, 1)
    suggestion = f"did you mean {near[0]!r}? " if near else ""
    more = f" and {len(names) - MAX_NAMED_TRAINS} more" if len(names) > MAX_NAMED_TRAINS else ""
    return f"{suggestion}there are: {', '.join(names[:MAX_NAMED_TRAINS]) or 'none'}{more}"


def _check_train_name(text: str) -> str:
    try:
        return check_name(text)
    except ValueError as error:
        raise InputError(str(error)) from error


def all_trains(root: Path) -> list[RunDir]:
    """Return every train below `root`, sorted by name."""
    try:
        runs = [RunDir(path) for path in root.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []
    return sorted(filter(_is_train, runs), key=lambda run: run.name)


def _is_train(run: RunDir) -> bool:
    """Whether the directory is a train. Another read error than a missing permission counts as yes, to be reported."""
    try:
        return run.exists
    except PermissionError:
        return False
    except OSError:
        return True


def may_act(run: RunDir) -> bool:
    """Whether this user owns the train; False if unknown, as for a directory that has vanished."""
    try:
        return run.is_ours
    except OSError:
        return False
