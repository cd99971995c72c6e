"""The record of each rollback of a train, by which an interrupted one goes on and a finished one is undone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from opsctl.settings.rollback import RollbackSettings
from opsctl.state.files import MAX_RECORD_BYTES, list_names, read_json
from opsctl.state.records import decode, to_text
from opsctl.state.run_dir import RunDir


class RollbackPhase(StrEnum):
    """How far a rollback, or its undo, has got."""

    BEGUN = "begun"
    """The train is to be stopped, and newer checkpoints are to be set aside."""
    MOVED = "moved"
    """Checkpoints and settings are those of the rollback; the train is to be released."""
    DONE = "done"
    UNDOING = "undoing"
    """The train is to be stopped, and what it has saved since is to be set aside."""
    CLEARED = "cleared"
    """The earlier checkpoints are to be brought back."""
    RESTORED = "restored"
    """Checkpoints and settings are those before the rollback; the train is to be released."""
    UNDONE = "undone"


FINAL = frozenset({RollbackPhase.DONE, RollbackPhase.UNDONE})
UNDO = frozenset({RollbackPhase.UNDOING, RollbackPhase.CLEARED, RollbackPhase.RESTORED, RollbackPhase.UNDONE})


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRecord:
    """One rollback: where to, with what, and what the settings were before."""

    number: int
    phase: RollbackPhase
    step: int
    checkpoint: str
    directories: tuple[str, ...]
    """The directories whose newer checkpoints were set aside."""
    skip_samples: tuple[str, ...] = ()
    lr_scale: float | None = None
    step_before: int | None = None
    checkpoint_before: str = ""
    skip_samples_before: tuple[str, ...] = ()
    lr_scale_before: float | None = None

    @property
    def aside(self) -> str:
        """The name of the directories with the checkpoints that were set aside."""
        return f".rolled-back-{self.number:04}"

    @property
    def undone(self) -> str:
        """The name of the directories with what was saved between rollback and undo."""
        return f".undone-{self.number:04}"

    def keys(self, *, before: bool) -> dict[str, object]:
        """Return the keys of [rollback] after the rollback, or `before` it; None removes a key."""
        settings = {
            "step": self.step_before if before else self.step,
            "checkpoint": self.checkpoint_before if before else self.checkpoint,
            "skip_samples": self.skip_samples_before if before else self.skip_samples,
            "lr_scale": self.lr_scale_before if before else self.lr_scale,
        }
        return {key: value if value not in ("", ()) else None for key, value in settings.items()}


def records_dir(run: RunDir) -> Path:
    """Return the directory of the records."""
    return run.path / "rollbacks"


def read_newest(run: RunDir) -> RollbackRecord | None:
    """Return the newest rollback of a train; None without any. Raises OSError and ValueError for a damaged record."""
    try:
        names = sorted(name for name in list_names(records_dir(run)) if name.endswith(".json") and name[0].isdigit())
    except FileNotFoundError:
        return None
    if not names:
        return None
    path = records_dir(run) / names[-1]
    try:
        return decode(RollbackRecord, read_json(path, MAX_RECORD_BYTES))
    except ValueError as error:
        raise ValueError(f"{path}: not a record of a rollback: {error}") from error


def write_record(run: RunDir, record: RollbackRecord) -> None:
    """Write the record. Raises RunDirError."""
    run.make(records_dir(run))
    run.write(records_dir(run) / f"{record.number:04}.json", to_text(record))


def to_record(settings: RollbackSettings, **fields: object) -> RollbackRecord:
    """Return a new record; `settings` are those before the rollback."""
    return RollbackRecord(
        phase=RollbackPhase.BEGUN,
        step_before=settings.step,
        checkpoint_before=settings.checkpoint,
        skip_samples_before=settings.skip_samples,
        lr_scale_before=settings.lr_scale,
        **fields,  # type: ignore[arg-type]  # the caller names the fields
    )
