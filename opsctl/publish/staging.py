"""The copies of one train's files in one directory. Only changed files are copied again, each atomically."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from opsctl.base.errors import OpsctlError, RunDirError, writing
from opsctl.base.ports import Clock, Completed, Runner, TimedOut
from opsctl.publish.sources import HoldsSecret
from opsctl.state.files import make_directories, write_atomic
from opsctl.state.records import HEADER, decode, load_state

SAVE_STATE_S = 5.0
"""How often the state is saved during a run. A killed run repeats at most this much work."""
DOUBTFUL = "doubtful"
"""The mark of a copy made with other configured secrets."""


class DeadlinePassed(OpsctlError):
    """Out of time. Finished copies stay, and the next call continues after them."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class TimeLimit:
    clock: Clock
    at: float
    """In seconds of the monotonic clock."""
    seconds: float

    @classmethod
    def within(cls, clock: Clock, seconds: float) -> Self:
        return cls(clock, clock.monotonic() + seconds, seconds)

    def left(self) -> float:
        """Return the seconds left. Raises DeadlinePassed if there are none."""
        left = self.at - self.clock.monotonic()
        if left <= 0:
            raise DeadlinePassed(f"not published within {self.seconds:g} s; the next call continues from here")
        return left

    def run(self, runner: Runner, argv: Sequence[str], name: str, **options: Any) -> Completed:
        """Run a program within the time left. Raises DeadlinePassed, which calls the program `name`."""
        try:
            return runner.run(argv, timeout=self.left(), **options)
        except TimedOut as error:
            raise DeadlinePassed(f"{name} did not finish within the time limit of {self.seconds:g} s") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """The record of one copy."""

    mark: str
    """The mark of the source at the time of the copy."""
    size: int
    sha256: str
    struck: int = 0
    """Number of secrets struck out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One file and its result."""

    name: str
    action: Literal["copied", "unchanged", "refused", "would copy"]
    size: int = 0
    left_out: int = 0
    """Bytes at the beginning of the source that are not in the copy."""
    struck: int = 0
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Stage:
    """A directory of copies and its saved state."""

    directory: Path
    state: Path
    rules: str
    """Hash of the rules. With other rules, every file is copied again."""
    secrets: str
    """Hash of the secrets. With other secrets, every file is copied again. The state file is private to its owner."""
    deadline: TimeLimit
    copies: dict[str, CopyRecord] = field(default_factory=dict)
    shipped: str = ""
    """The digest of the last published copies."""
    _saved: float = float("-inf")

    def open(self) -> None:
        """Load the saved state, if there is one. After a change of rules or secrets, no copy is current.

        Raises RunDirError for a state that cannot be read: which copies may hold a secret is then unknown.
        """
        state = load_state(_parse, self.state, "check the copies for secrets, remove those in doubt, then this file")
        if state is None:
            return
        copies, rules, secrets, shipped = state
        if secrets != self.secrets:
            self.copies = {name: replace(copy, mark=DOUBTFUL) for name, copy in copies.items()}
        elif rules != self.rules:
            old = copies.items()
            self.copies = {name: copy if copy.mark == DOUBTFUL else replace(copy, mark="") for name, copy in old}
        else:
            self.copies, self.shipped = copies, shipped

    @property
    def doubtful(self) -> list[str]:
        """Copies that may hold a secret, because they were made with other configured secrets."""
        return [name for name, copy in self.copies.items() if copy.mark == DOUBTFUL]

    def is_current(self, name: str, mark: str) -> bool:
        """Whether the copy exists and was made from the current source."""
        copy = self.copies.get(name)
        try:
            return copy is not None and copy.mark == mark and (self.directory / name).stat().st_size == copy.size
        except OSError:
            return False

    def put(self, name: str, mark: str, make: Callable[[], tuple[bytes, int]], *, left_out: int = 0) -> StagedFile:
        """Make the copy, unless it is current. Raises RunDirError if the copy cannot be written, DeadlinePassed."""
        self.deadline.left()
        if self.is_current(name, mark):
            copy = self.copies[name]
            return StagedFile(name=name, action="unchanged", size=copy.size, left_out=left_out, struck=copy.struck)
        try:
            data, struck = make()
        except HoldsSecret as refusal:
            return self.refuse(name, str(refusal))
        except OSError as error:
            return self.refuse(name, error.strerror or str(error))
        path = self._locate(name)
        with writing(path):
            make_directories(path.parent)
            write_atomic(path, data)
        self.copies[name] = CopyRecord(
            mark=mark, size=len(data), sha256=hashlib.sha256(data).hexdigest(), struck=struck
        )
        self._save_now_and_then()
        return StagedFile(name=name, action="copied", size=len(data), left_out=left_out, struck=struck)

    def _locate(self, name: str) -> Path:
        """Return the place of a copy. Raises RunDirError if a directory on the way, or a link, is another user's."""
        path = self.directory / name
        for place in path.parents[: len(Path(name).parts)]:
            with suppress(FileNotFoundError, NotADirectoryError):
                if (uid := place.lstat().st_uid) not in {0, os.geteuid()}:
                    raise RunDirError(f"{place}: belongs to uid {uid}, who could lead the copies elsewhere")
        return path

    def refuse(self, name: str, why: str) -> StagedFile:
        """Publish nothing of this file, and remove an earlier copy."""
        self._locate(name).unlink(missing_ok=True)
        self.copies.pop(name, None)
        return StagedFile(name=name, action="refused", why=why)

    @property
    def digest(self) -> str:
        """A hash of all copies."""
        rows = "\n".join(f"{name} {copy.sha256}" for name, copy in sorted(self.copies.items()))
        return hashlib.sha256(rows.encode()).hexdigest()

    def save(self) -> None:
        """Save the state. Raises RunDirError."""
        copies = {name: asdict(copy) for name, copy in self.copies.items()}
        record = {**HEADER, "rules": self.rules, "secrets": self.secrets, "shipped": self.shipped, "copies": copies}
        with writing(self.state):
            write_atomic(self.state, json.dumps(record) + "\n", mode=0o600)

    def _save_now_and_then(self) -> None:
        if self.deadline.clock.monotonic() - self._saved > SAVE_STATE_S:
            self.save()
            self._saved = self.deadline.clock.monotonic()

    def sweep(self, names: Iterable[str]) -> None:
        """Remove temporary files of killed writers of these names."""
        for name in names:
            path = self._locate(name)
            temporary = re.compile(rf"\.{re.escape(path.name)}\.\w{{8}}")
            for hidden in path.parent.glob(f".{path.name[:1]}*"):
                if temporary.fullmatch(hidden.name):
                    hidden.unlink(missing_ok=True)


def _parse(state: Any) -> tuple[dict[str, CopyRecord], str, str, str]:
    copies = {name: decode(CopyRecord, record) for name, record in state["copies"].items()}
    return copies, str(state["rules"]), str(state["secrets"]), str(state["shipped"])
