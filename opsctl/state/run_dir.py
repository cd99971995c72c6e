"""Where everything of a train lies, who may write it, and whether it may be trusted."""

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
"""The only places that others may write to, and only those of the site's group."""

SHOWN = 10
"""So many trains' names fit into a message."""

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
        """What Slurm calls it: `12_3`."""
        return self.name.rpartition(".")[0]

    @property
    def array(self) -> str:
        return self.job.partition("_")[0]

    @property
    def task(self) -> int | None:
        """None outside an array."""
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
        """Written last of all. An attempt without it has not been finalized."""
        return self.path / "end.json"

    @property
    def stop_request(self) -> Path:
        return self.path / "stop-request"

    @property
    def stop_reason(self) -> Path:
        return self.path / "stop-reason.json"

    @property
    def deadline(self) -> Path:
        return self.path / "deadline"

    @property
    def body_exit(self) -> Path:
        """The body's exit code, as the guard saw it."""
        return self.path / "body-exit"

    @property
    def stacks_request(self) -> Path:
        return self.path / "stacks-request"

    @property
    def repro(self) -> Path:
        return self.path / "repro"


@dataclass(frozen=True, slots=True)
class RunDir:
    """A train's directory. Properties are paths and touch nothing."""

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
        """Every attempt that has a directory, in no order that means anything."""
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
        """Whether this user owns it, and so may act for it."""
        return self.path.stat().st_uid == os.geteuid()

    def create(self, group: str = "") -> None:
        """Make every directory of it. Idempotent. Raises RunDirError, and InputError for a group that is not ours."""
        try:
            for path in reversed((self.path, *self.path.parents)):
                # One by one: parents made on the way would follow the umask, and often be the group's to write.
                if not path.exists():
                    path.mkdir(exist_ok=True, mode=0o755)
                    if group:  # whoever may arm switches has to get there, also where the umask hides all else
                        path.chmod(0o755)
            for literal in OWNED:
                self.make(self.path / literal)
            for literal in SHARED:
                (self.path / literal).mkdir(exist_ok=True)
                _share(self.path / literal, group)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def make(self, path: Path) -> None:
        """Make a directory of it, and those above: whatever the umask, for its owner alone to write, and for others to
        read as the run directory is. Idempotent. Raises OSError."""
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
    # set-gid, so that what is made inside belongs to the group; not sticky, so that a team-mate can disarm.
    directory.chmod(0o2775)


def check_trusted(paths: Iterable[Path], *, root: Path | None = None) -> None:
    """Refuse to run what others could have written: each path and its parents, up to `root` if given, else to /.

    Raises RunDirError with every offence in it. A directory with the sticky bit, such as /tmp, lets nobody replace
    what is not theirs, so it is no offence.
    """
    trusted = {0, os.geteuid()}
    offences: dict[Path, str] = {}
    for path in paths:
        for each in (path, *path.absolute().parents):
            offences |= _offence(each, trusted)
            if each == root:
                break
    if offences:
        lines = "\n".join(f"  {path}: {why}" for path, why in offences.items())
        raise RunDirError(
            f"others could have written what would be run here as you:\n{lines}",
            hint="chmod go-w them, or set trust_parents = true in site.toml if you trust everyone who can write there",
        )


def _offence(path: Path, trusted: set[int]) -> dict[Path, str]:
    try:
        found = path.stat()
    except OSError as error:
        return {path: error.strerror or str(error)}
    if found.st_uid not in trusted:
        return {path: f"belongs to uid {found.st_uid}"}
    if found.st_mode & 0o022 and not (path.is_dir() and found.st_mode & stat.S_ISVTX):
        return {path: f"mode {stat.S_IMODE(found.st_mode):04o} lets others write"}
    return {}


def find(root: Path, text: str) -> RunDir:
    """The train that `text` names: its name, its run directory, or a TRAIN.toml in it. Raises InputError."""
    if not text:
        raise InputError("the name of the train is empty", hint="opsctl status lists them")
    path = Path(text)
    try:
        if path.name == "train.toml" and path.is_file():
            path = path.parent
        is_path = "/" in text or RunDir(path).exists
        run = RunDir(path.absolute() if is_path else root / _checked(text))
        there = run.exists
    except OSError as error:  # a name too long for any file, a directory that may not be looked into
        raise InputError(f"{text!r:.80}: {error.strerror}") from error
    if not there:
        raise InputError(f"no train {text!r} below {root}; {_known(root, text)}", hint="opsctl status lists them")
    return run


def _known(root: Path, text: str) -> str:
    """The train that was meant, if one is near, and what there is."""
    names = [train.name for train in all_trains(root)]
    near = get_close_matches(text, names, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{meant}there are: {', '.join(names[:SHOWN]) or 'none'}{more}"


def _checked(text: str) -> str:
    try:
        return check_name(text)
    except ValueError as error:
        raise InputError(str(error)) from error


def all_trains(root: Path) -> list[RunDir]:
    """Every train below `root`, by name."""
    try:
        runs = [RunDir(path) for path in root.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []
    return sorted(filter(_is_train, runs), key=lambda run: run.name)


def _is_train(run: RunDir) -> bool:
    """What its user keeps from us is none of ours; what cannot be read just now still is one, and said to be so."""
    try:
        return run.exists
    except PermissionError:
        return False
    except OSError:
        return True


def may_act(run: RunDir) -> bool:
    """Whether it is ours; no, where that cannot be told: it may be gone by now."""
    try:
        return run.is_ours
    except OSError:
        return False
