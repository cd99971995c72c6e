"""Paths of a run directory and their permissions; the trains below a root."""

import contextlib
import grp
import os
import stat
from collections.abc import Set
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from opsctl.base.errors import InputError, RunDirError, cannot_read, writing
from opsctl.settings.field_types import NAME, check_name
from opsctl.state.files import (
    Below,
    is_directory,
    is_regular,
    list_names,
    make_directories,
    make_directory,
    set_directory_mode,
    write_atomic,
)
from opsctl.state.packed import unpacked
from opsctl.state.trust import check_trusted

__all__ = ["Attempt", "RunDir", "all_trains", "check_trusted", "find", "find_entries_skipped", "may_act", "scan"]

SHARED = ("switches", "requests")
"""The only directories that other users, those of the site's group, can write."""

FLIGHT_DUMP_PREFIX = "flight-"
"""Beginning of the names of dumps of torch's flight recorder in an attempt's directory; the rank follows."""

MAX_NAMED_TRAINS = 10
"""Train names in a message."""

OWNED = ("journal", "heartbeat", "logs", "attempts", "checkpoints", "revisions")


@dataclass(frozen=True, slots=True)
class Attempt:
    """The directory of one attempt: `<array>_<task>.<start>`, or `<job>.<start>` outside an array.

    `<start>` counts the starts of the task, whoever started it: Slurm, or the guard inside the allocation.
    """

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
    def number(self) -> int:
        """The number of this start of the task, from 0."""
        return int(self.name.rpartition(".")[2])

    @property
    def successor(self) -> "Attempt":
        """The next start of the task, whether or not there was one."""
        return Attempt(self.path.with_name(f"{self.job}.{self.number + 1}"))

    @property
    def has_successor(self) -> bool:
        """Whether the task was started again since."""
        return self.successor.path.is_dir()

    start = Below("start.json")
    end = Below("end.json")
    """The last file to be written. An attempt without end.json is not finalized."""
    stop_request = Below("stop-request")
    stop_reason = Below("stop-reason.json")
    finished = Below("finished")
    """The file with which a trainer says that the training is over."""
    deadline = Below("deadline")
    body_exit = Below("body-exit")
    """The exit code of the body, written by the guard."""
    stacks_request = Below("stacks-request")
    step_times = Below("step-times")
    repro = Below("repro")


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run directory. Properties are paths and touch nothing."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    config = Below("train.toml")
    trainer_config = Below("trainer.json")
    wrapper = Below("wrapper.slurm")
    body = Below("body.sh")
    rank_wrapper = Below("rank_wrapper.py")
    """The program that starts each rank, written by the guard."""
    journal = Below("journal")
    switches = Below("switches")
    requests = Below("requests")
    heartbeat = Below("heartbeat")
    logs = Below("logs")
    main_log = Below("logs/main_log.txt")
    checkpoints = Below("checkpoints")
    mlflow_run = Below("mlflow-run-id")
    """The id of the train's run in MLflow, written by the trainer."""
    revisions = Below("revisions")

    def attempt(self, name: str) -> Attempt:
        return Attempt(self.path / "attempts" / name)

    def attempts(self, *, known: Set[str] = frozenset()) -> list[Attempt]:
        """Return every attempt that has a directory, unordered, but those that are `known`."""
        directory = self.path / "attempts"
        try:
            names = [name for name in list_names(directory) if name not in known]
        except FileNotFoundError:
            return []
        return [Attempt(directory / name) for name in names if is_directory(directory / name)]

    def attempt_logs(self, attempt: str) -> Path:
        """Return the directory with the logs of the ranks, a copy if they are packed. Raises RunDirError."""
        return unpacked(self.logs / attempt)

    @property
    def exists(self) -> bool:
        """Whether this is a train: a real directory with a valid name and a regular train.toml. Raises OSError."""
        return not self.why_no_train

    @property
    def why_no_train(self) -> str:
        """Why this is no train; empty for a train. Raises OSError."""
        if not is_directory(self.path):
            return f"a symbolic link to {self.path.readlink()}" if self.path.is_symlink() else "not a directory"
        if not is_regular(self.config):
            return "train.toml is not a regular file" if os.path.lexists(self.config) else "no train.toml"
        return "" if NAME.fullmatch(self.name) else "not a valid name of a train"

    @property
    def is_ours(self) -> bool:
        """Whether this user owns the run directory and may therefore act for the train. Raises OSError."""
        return self.path.lstat().st_uid == os.geteuid()

    def create(self, group: str = "") -> None:
        """Make every directory. Idempotent. Raises RunDirError, and InputError for a group that does not exist."""
        with writing(self.path):
            missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
            make_directories(self.path)
            for path in missing if group else ():  # members must reach the switches, whatever the umask
                set_directory_mode(path, 0o755)
            for literal in OWNED:
                self.make(self.path / literal)
            for literal in SHARED:
                make_directory(self.path / literal, 0o755)
                _share(self.path / literal, group)

    def make(self, path: Path) -> None:
        """Make a directory and its parents, independent of the umask: writable by the owner only, readable like the run
        directory. Idempotent. Raises OSError."""
        if not path.is_dir():
            make_directories(path.parent)
            make_directory(path, 0o755 & stat.S_IMODE(self.path.stat().st_mode))

    def write(self, path: Path, data: str, *, mode: int = 0o644) -> None:
        """Write a file of the run directory atomically. Raises RunDirError."""
        with writing(path):
            write_atomic(path, data, mode=mode)


def _share(directory: Path, group: str) -> None:
    if not group:
        set_directory_mode(directory, 0o755)
        return
    try:
        group_id = grp.getgrnam(group).gr_gid
    except KeyError:
        raise InputError(f"group {group!r}: no such group", hint="`group` in site.toml") from None
    try:
        # set-gid: new files belong to the group. Not sticky: team members can disarm each other's switches.
        set_directory_mode(directory, 0o2775, group=group_id)
    except PermissionError:
        hint = "log in again after you were added to the group, or change `group` in site.toml"
        raise InputError(f"group {group!r}: you are not a member", hint=hint) from None


def find(root: Path, text: str) -> RunDir:
    """Return the train by its name, its run directory, or the train.toml there. Raises InputError.

    A text without `/` is a name below `root`, whatever the working directory holds: anybody may have made it. A shell
    completes a name there with a `/`, so that a path that ends in the name of a train starts with `/` or `.`.
    """
    if not text:
        raise InputError("the name of the train is empty", hint="opsctl status lists all trains")
    try:
        path = Path(text)
        if "/" in text and path.name == "train.toml" and path.is_file():
            path = path.parent
        # Not resolved: a link to a train is no train.
        run = RunDir(Path(os.path.normpath(path.absolute())) if "/" in text else root / _check_train_name(text))
        why = run.why_no_train
        own = root / run.name
        if "/" in text and text[0] not in "/." and RunDir(own).exists and (why or not own.samefile(run.path)):
            raise InputError(
                f"{text!r} is a path, and {run.name} a train below {root}",
                hint=f"{run.name} means the train, ./{text} the path",
            )
        is_other_directory = is_directory(run.path) and not os.path.lexists(run.config)
    except OSError as error:  # a name too long for a file, a directory without permission
        raise InputError(f"{text!r:.80}: {error.strerror}") from error
    if why:
        more = f" ({why})" if os.path.lexists(run.path) and not is_other_directory else ""
        raise InputError(f"no train {text!r} below {root}{more}; {_suggest(root, text)}", hint=_hint_at_path(text))
    return run


def _hint_at_path(text: str) -> str:
    """Return what to type for a run directory of the working directory, else how to list the trains."""
    with contextlib.suppress(OSError):
        if "/" not in text and RunDir(Path(text).absolute()).exists:
            return f"a run directory outside of the root needs a slash: ./{text}"
    return "opsctl status lists all trains"


def _suggest(root: Path, text: str) -> str:
    """Return the nearest train name, if any, and the existing trains."""
    try:
        names = [train.name for train in all_trains(root)]
    except RunDirError as error:
        return error.message
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
    """Return every train below `root`, sorted by name. Links and entries without a valid name are no trains.

    Raises RunDirError if `root` cannot be listed: its trains are then unknown. It need not exist before a launch.
    """
    return scan(root)[0]


def find_entries_skipped(root: Path) -> list[str]:
    """Return one line for each entry of `root` that looks like a train and is none, safe to print.

    Raises RunDirError as `all_trains`.
    """
    return scan(root)[1]


def scan(root: Path) -> tuple[list[RunDir], list[str]]:
    """Return the trains of `all_trains` and the lines of `find_entries_skipped`. Raises RunDirError as they do."""
    trains, skipped = [], []
    around = f"{root}/"
    for name in _names(root):
        is_valid = bool(NAME.fullmatch(name))
        if is_valid and _is_train(around + name):
            trains.append(RunDir(root / name))
        elif not name.startswith(".") and _looks_like_train(path := root / name):
            shown = name if is_valid else ascii(name)
            skipped.append(f"{shown:.80}: {'a symbolic link' if path.is_symlink() else RunDir(path).why_no_train}")
    return trains, skipped


def _names(root: Path) -> list[str]:
    try:
        return sorted(list_names(root))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cannot_read(root, error) from error


def _looks_like_train(path: Path) -> bool:
    try:
        return os.path.lexists(path / "train.toml")
    except OSError:
        return False


def _is_train(path: str) -> bool:
    """Whether the directory is a train. Another read error than a missing permission counts as yes, to be reported."""
    try:
        return is_directory(path) and is_regular(f"{path}/train.toml")
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
