"""The copies of one train's files in one directory: only what has changed is made anew, each in one step."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from opsctl.errors import OpsctlError, cannot_write
from opsctl.ports import Clock
from opsctl.publish.sources import HoldsSecret
from opsctl.state.files import write_atomic

SAVED_EVERY_S = 5.0
"""How often what was done is written down on the way: whoever is killed does no more than this again."""
DOUBTFUL = "doubtful"
"""The mark of a copy that was made when other secrets were known."""


class DeadlinePassed(OpsctlError):
    """Out of time. What is done stays, and the next call goes on from there."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class TimeLimit:
    clock: Clock
    at: float
    """On the clock that never goes back."""
    seconds: float

    @classmethod
    def within(cls, clock: Clock, seconds: float) -> TimeLimit:
        return cls(clock, clock.monotonic() + seconds, seconds)

    def left(self) -> float:
        """Seconds. Raises Late if there are none."""
        left = self.at - self.clock.monotonic()
        if left <= 0:
            raise DeadlinePassed(f"not published within {self.seconds:g} s; the next call goes on from here")
        return left


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """What is known of a copy that was made."""

    mark: str
    """Of what it was made from."""
    size: int
    sha256: str
    struck: int = 0
    """How many secrets were struck out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """One file, and what became of it."""

    name: str
    action: Literal["copied", "unchanged", "refused", "would copy"]
    size: int = 0
    left_out: int = 0
    """Bytes at its front that are not in the copy."""
    struck: int = 0
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Stage:
    directory: Path
    state: Path
    rules: str
    """Says by which rules copies are made: under others all are made anew."""
    secrets: str
    """Says which secrets were struck out, likewise. Nobody else may read it."""
    deadline: TimeLimit
    copies: dict[str, CopyRecord] = field(default_factory=dict)
    shipped: str = ""
    """The digest of what was handed on last."""
    _saved: float = float("-inf")

    def open(self) -> None:
        """Read what was done before, if it can be understood. By other rules no copy is current."""
        try:
            given = json.loads(self.state.read_text())
            copies = {name: CopyRecord(**each) for name, each in given["copies"].items()}
            rules, secrets, shipped = (str(given[key]) for key in ("rules", "secrets", "shipped"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return
        if secrets != self.secrets:
            self.copies = {name: replace(copy, mark=DOUBTFUL) for name, copy in copies.items()}
        elif rules != self.rules:
            self.copies = {
                name: copy if copy.mark == DOUBTFUL else replace(copy, mark="") for name, copy in copies.items()
            }
        else:
            self.copies, self.shipped = copies, shipped

    @property
    def doubtful(self) -> list[str]:
        """Copies that may hold a secret, for other secrets were known when they were made."""
        return [name for name, copy in self.copies.items() if copy.mark == DOUBTFUL]

    def is_current(self, name: str, mark: str) -> bool:
        """Whether the copy is there and of what is there now."""
        copy = self.copies.get(name)
        try:
            return copy is not None and copy.mark == mark and (self.directory / name).stat().st_size == copy.size
        except OSError:
            return False

    def put(self, name: str, mark: str, make: Callable[[], tuple[bytes, int]], *, left_out: int = 0) -> StagedFile:
        """Make the copy, unless it is current. Raises RunDirError where it cannot be written, Late."""
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
        path = self.directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
        except OSError as error:
            raise cannot_write(path, error) from error
        self.copies[name] = CopyRecord(
            mark=mark, size=len(data), sha256=hashlib.sha256(data).hexdigest(), struck=struck
        )
        self._note()
        return StagedFile(name=name, action="copied", size=len(data), left_out=left_out, struck=struck)

    def refuse(self, name: str, why: str) -> StagedFile:
        """Nothing of it is published, nor stays published where a copy was made under other rules."""
        (self.directory / name).unlink(missing_ok=True)
        self.copies.pop(name, None)
        return StagedFile(name=name, action="refused", why=why)

    @property
    def digest(self) -> str:
        """Of all that is there."""
        rows = "\n".join(f"{name} {copy.sha256}" for name, copy in sorted(self.copies.items()))
        return hashlib.sha256(rows.encode()).hexdigest()

    def save(self) -> None:
        """Write down what was done. Raises RunDirError."""
        copies = {name: asdict(copy) for name, copy in self.copies.items()}
        record = {"rules": self.rules, "secrets": self.secrets, "shipped": self.shipped, "copies": copies}
        try:
            write_atomic(self.state, json.dumps(record) + "\n", mode=0o600)
        except OSError as error:
            raise cannot_write(self.state, error) from error

    def _note(self) -> None:
        if self.deadline.clock.monotonic() - self._saved > SAVED_EVERY_S:
            self.save()
            self._saved = self.deadline.clock.monotonic()

    def sweep(self, names: Iterable[str]) -> None:
        """Remove what writers of these names have left that were killed."""
        for name in names:
            path = self.directory / name
            left = re.compile(rf"\.{re.escape(path.name)}\.\w{{8}}")
            for each in path.parent.glob(f".{path.name[:1]}*"):
                if left.fullmatch(each.name):
                    each.unlink(missing_ok=True)
