"""The record of each rollback of a train, by which an interrupted one goes on and a finished one is undone; and whether
one runs or waits to be finished.

A page that starts a rollback leaves the process, and its output, in files beside the record of the rollback.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from opsctl.base.errors import InputError
from opsctl.base.nodesets import hostname
from opsctl.base.ports import Clock
from opsctl.host.processes import ProcessId
from opsctl.settings.rollback import RollbackSettings
from opsctl.state.files import MAX_RECORD_BYTES, list_names, read_json, read_range
from opsctl.state.lease import LeaseHolder, find_holder, lease
from opsctl.state.records import decode, load_record, to_text
from opsctl.state.run_dir import RunDir

SHOWN_FOR = timedelta(days=1)
"""The result of a rollback that a page started is shown for this long."""
BEGINS_WITHIN = timedelta(seconds=30)
"""A process that a page has started holds the lease, or has printed why not, after this time."""
MAX_START_BYTES = 4096
MAX_OUTPUT_BYTES = 4096
MAX_LINES = 6
MAX_PROCESSES = 16
"""Processes that a record names, the newest."""


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
    carried_out_by: tuple[str, ...] = ()
    """The processes that have carried the rollback out, or found it done, by `name_process`."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRollback:
    step: int
    at: datetime
    by: str
    host: str
    pid: int
    started: int

    @property
    def name(self) -> str:
        return name_process(self.host, ProcessId(pid=self.pid, started=self.started))

    @property
    def is_here(self) -> bool:
        """Whether this machine can see its process. Of a process on another machine, only its lease is known."""
        return self.host == hostname()

    def may_begin(self, now: datetime) -> bool:
        """Whether it may be about to take the lease, on a machine whose processes are not known here."""
        return not self.is_here and abs(now - self.at) < BEGINS_WITHIN

    @property
    def is_alive(self) -> bool:
        """Whether its process is known to run."""
        return self.is_here and ProcessId(pid=self.pid, started=self.started).is_alive

    def is_holder(self, holder: LeaseHolder | None) -> bool:
        """Whether its process holds the lease."""
        host = holder.host.partition("/")[0] if holder else ""
        return holder is not None and (host, holder.pid, holder.started) == (self.host, self.pid, self.started)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackState:
    """A rollback that runs or was interrupted, or that a page started within a day."""

    step: int
    record: RollbackRecord | None
    """The newest record of the train; None before the first."""
    is_running: bool
    started: StartedRollback | None
    """None for a rollback or an undo that no page has started."""
    output: tuple[str, ...] = ()
    """The newest lines that the process has printed."""
    is_carried_out: bool = False
    """Whether a record names the process as one that has carried out the rollback."""

    @property
    def is_interrupted(self) -> bool:
        return not self.is_running and self.record is not None and self.record.phase not in FINAL

    @property
    def is_undo(self) -> bool:
        return self.record is not None and self.record.phase in UNDO - FINAL

    @property
    def is_done(self) -> bool:
        return not self.is_running and self.is_carried_out


def read_rollback_state(run: RunDir, clock: Clock) -> RollbackState | None:
    """Return the rollback that a page has to show; None without any. Files that cannot be read show nothing."""
    try:
        record = read_newest(run)
    except (OSError, ValueError):
        record = None
    started, holder = read_start(run), find_holder(records_dir(run), clock)
    is_from_page = started is not None and (is_working(run, started, clock) or started.is_holder(holder))
    is_running = holder is not None or is_from_page
    if is_running and not is_from_page:
        started = None
    is_unfinished = record is not None and record.phase not in FINAL
    is_recent = started is not None and abs(clock.now() - started.at) < SHOWN_FOR
    if not (is_running or is_unfinished or is_recent):
        return None
    step = started.step if started else 0
    if record and (is_unfinished or started is None):
        step = record.step
    output = _read_output(run) if started and is_recent and started.step == step else ()
    return RollbackState(
        step=step,
        record=record,
        is_running=is_running,
        started=started,
        output=output,
        is_carried_out=bool(started and is_recent) and _is_carried_out(run, started),
    )


def _is_carried_out(run: RunDir, started: StartedRollback | None) -> bool:
    """Whether a record names the process: not always the newest, after a rollback in a terminal."""
    for path in _list_records(run):
        with contextlib.suppress(OSError, ValueError):
            if started and started.name in _read_record(path).carried_out_by:
                return True
    return False


def is_working(run: RunDir, started: StartedRollback, clock: Clock) -> bool:
    """Whether the process that a page has started runs, or is about to take the lease."""
    return started.is_alive or (started.may_begin(clock.now()) and not _read_output(run))


def check_not_rolling_back(run: RunDir, clock: Clock) -> None:
    """Raise InputError while a rollback runs, or waits to be finished: a task would start from a wrong checkpoint.

    So it does if the record of the newest rollback cannot be read.
    """
    try:
        read_newest(run)
    except (OSError, ValueError) as error:
        hint = f"opsctl checkpoint list {run.name} shows the checkpoints; then restore the record, or remove it"
        raise InputError(f"{run.name}: the record of the newest rollback cannot be read: {error}", hint=hint) from error
    state = read_rollback_state(run, clock)
    if state and state.is_running:
        raise make_refusal(run)
    if state and state.is_interrupted:
        what, option = ("an undo", " --undo") if state.is_undo else ("a rollback", "")
        raise InputError(
            f"{run.name}: {what} was interrupted",
            hint=f"opsctl rollback {run.name}{option} finishes the {what.split()[1]}",
        )


@contextlib.contextmanager
def without_rollback(run: RunDir, clock: Clock) -> Iterator[None]:
    """Let no rollback of our train begin meanwhile. Raises as `check_not_rolling_back`, and LeaseBusy.

    A rollback holds the lease on the run directory when it first looks at the queue.
    """
    check_not_rolling_back(run, clock)
    with lease(run.path, clock) if run.is_ours else contextlib.nullcontext():
        check_not_rolling_back(run, clock)  # begun while this process waited for the lease
        yield


def check_may_hold(run: RunDir, clock: Clock) -> None:
    """Raise InputError while a rollback runs: its end would release what a person holds now."""
    state = read_rollback_state(run, clock)
    if state and state.is_running:
        raise InputError(
            f"{run.name}: a rollback is running; it holds the queued tasks, and releases them at its end",
            hint=f"opsctl kill-switch arm {run.name} stops the train for good; or hold when the rollback is done",
        )


def make_refusal(run: RunDir) -> InputError:
    """Return the refusal of what must wait for the end of a rollback."""
    return InputError(
        f"{run.name}: a rollback is running",
        hint=f"opsctl status {run.name} shows when the rollback is done; then call again",
    )


def read_start(run: RunDir) -> StartedRollback | None:
    """Return the process that a page has started; None without any, and for a file that cannot be read."""
    return load_record(StartedRollback, start_path(run), MAX_START_BYTES)


def _read_output(run: RunDir) -> tuple[str, ...]:
    try:
        data = read_range(output_path(run), -MAX_OUTPUT_BYTES, MAX_OUTPUT_BYTES)[0]
    except OSError:
        return ()
    lines = [line.strip() for line in data.decode(errors="replace").splitlines()]
    return tuple(filter(None, lines))[-MAX_LINES:]


def start_path(run: RunDir) -> Path:
    """Return the file that names the process of the newest rollback of a page."""
    return records_dir(run) / "started.json"


def output_path(run: RunDir) -> Path:
    """Return the file with what that process has printed."""
    return records_dir(run) / "output.txt"


def records_dir(run: RunDir) -> Path:
    return run.path / "rollbacks"


def read_newest(run: RunDir) -> RollbackRecord | None:
    """Return the newest rollback of a train; None without any. Raises OSError and ValueError for a damaged record."""
    paths = _list_records(run)
    if not paths:
        return None
    try:
        return _read_record(paths[-1])
    except ValueError as error:
        raise ValueError(f"{paths[-1]}: not a record of a rollback: {error}") from error


def _list_records(run: RunDir) -> list[Path]:
    """Return the files of all records, the newest last. Raises OSError."""
    try:
        names = list_names(records_dir(run))
    except FileNotFoundError:
        return []
    return [records_dir(run) / name for name in sorted(names) if name.endswith(".json") and name[0].isdigit()]


def _read_record(path: Path) -> RollbackRecord:
    return decode(RollbackRecord, read_json(path, MAX_RECORD_BYTES))


def name_process(host: str, process: ProcessId) -> str:
    """Return a name that no other process of any machine has."""
    return f"{host}/{process.pid}/{process.started}"


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
