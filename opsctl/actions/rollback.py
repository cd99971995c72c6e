"""Carry out a rollback, or undo it: stop the train, move checkpoints, write a revision, release.

Each phase is recorded, and may be repeated: after an interruption at any line, the same call goes on.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from opsctl.actions.owner_actions import reconcile_own_train
from opsctl.actions.rollback_plan import (
    EMBEDDED,
    RollbackOptions,
    RollbackPlan,
    Show,
    check_may_roll_back,
    plan_rollback,
    render_files,
)
from opsctl.actions.steer_train import disarm_switch, read_switch
from opsctl.app import App
from opsctl.base.errors import InputError, RunDirError, WaitTimedOut, writing
from opsctl.base.nodesets import hostname
from opsctl.base.tables import parse_toml
from opsctl.checkpoints.completeness import Completeness
from opsctl.checkpoints.newer_checkpoints import bring_back, find_newer, set_aside
from opsctl.checkpoints.scan import FoundCheckpoint, list_checkpoints_in
from opsctl.host.processes import ProcessId, own_process
from opsctl.host.system import spawn
from opsctl.launch.revisions import Files, note_edit, swap
from opsctl.launch.rollback_state import (
    FINAL,
    MAX_PROCESSES,
    RollbackPhase,
    RollbackRecord,
    StartedRollback,
    is_working,
    make_refusal,
    name_process,
    output_path,
    read_newest,
    read_start,
    records_dir,
    start_path,
    write_record,
)
from opsctl.settings.loader import load_train
from opsctl.state.events import RollbackUndone, RolledBack
from opsctl.state.lease import LeaseBusy, find_holder, lease, refreshed
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.records import to_text
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch, arm
from opsctl.telemetry.progress.signs import find_all_directories
from opsctl.trainer import manifest

POLL_S = 1.0
"""Time between two looks at the queue while the running task stops."""
BUSY_WAIT_S = 5.0
"""Wait for another rollback before the refusal: a page that starts a rollback holds the lease for a moment."""
_UNDO_PHASES = (RollbackPhase.UNDOING, RollbackPhase.CLEARED, RollbackPhase.RESTORED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult:
    """What a rollback or an undo has done."""

    record: RollbackRecord
    aside: tuple[Path, ...] = ()
    """The new paths of the checkpoints that were set aside."""
    back: tuple[Path, ...] = ()
    """The checkpoints that were brought back."""
    released: tuple[str, ...] = ()
    """The arrays that were released, the last first."""


def plan_and_roll_back(
    app: App,
    run: RunDir,
    options: RollbackOptions,
    timeout: timedelta,
    *,
    show: Show,
    reason: str = "",
    announce: Callable[[RollbackPlan], None] = lambda _: None,
) -> tuple[RollbackPlan, RollbackResult]:
    """Plan a rollback, call `announce` with the plan, and carry out the plan.

    Raises as `plan_rollback` and `roll_back`. Of several processes, the first that begins to plan rolls back. Before
    the first rollback of a train, the first that ends its plan does: a refused plan must leave no directory.
    """
    check_may_roll_back(app, run)
    is_first = not records_dir(run).is_dir()
    with contextlib.nullcontext() if is_first else hold_rollback(app, run) as keep:
        plan = plan_rollback(app, run, options, show=show)
        announce(plan)
        if keep:
            return plan, _carry_out(app, plan, timeout, show=show, reason=reason, keep=keep)
    return plan, roll_back(app, plan, timeout, show=show, reason=reason)


def roll_back(app: App, plan: RollbackPlan, timeout: timedelta, *, show: Show, reason: str = "") -> RollbackResult:
    """Carry out the plan. Raises WaitTimedOut if a task has not stopped in time: call again.

    Raises LeaseBusy while another process rolls the train back.
    """
    with hold_rollback(app, plan.run, plan.record) as keep:
        return _carry_out(app, plan, timeout, show=show, reason=reason, keep=keep)


@contextlib.contextmanager
def hold_rollback(app: App, run: RunDir, record: RollbackRecord | None = None) -> Iterator[Callable[[], None]]:
    """Let no other process roll the train back or undo a rollback. Yields a function to call every few seconds.

    Raises LeaseBusy if another process does, or has gone on with `record` since that was read.
    """
    directory = records_dir(run)
    run.make(directory)
    again = f"opsctl status {run.name}; then call again"
    with contextlib.ExitStack() as stack:
        try:
            held = stack.enter_context(lease(directory, app.clock, wait=BUSY_WAIT_S))
        except LeaseBusy as error:
            holder = find_holder(directory, app.clock)
            raise LeaseBusy(f"{run.name}: {holder or 'another process'} rolls the train back", hint=again) from error
        if record and not _is_newest(record, read_newest(run)):
            raise LeaseBusy(f"{run.name}: another process has just rolled the train back", hint=again)
        with refreshed(held):  # checkpoints are verified and moved for minutes
            yield held.refresh


def _is_newest(record: RollbackRecord, newest: RollbackRecord | None) -> bool:
    """Whether no other rollback has begun, and this one has not gone on, since `record` was planned or read."""
    if newest is None or newest.number + 1 == record.number:
        return newest is None or newest.phase in FINAL
    return (newest.number, newest.phase) == (record.number, record.phase)


def _carry_out(
    app: App, plan: RollbackPlan, timeout: timedelta, *, show: Show, reason: str, keep: Callable[[], None]
) -> RollbackResult:
    run, record = plan.run, plan.record
    aside: list[Path] = []
    if record.phase is RollbackPhase.BEGUN:
        _set_phase(run, record, RollbackPhase.BEGUN)
        _protect(plan)
        why = f"opsctl rollback to step {record.step}{f': {reason}' if reason else ''}"
        _stop(app, run, why, timeout=timeout, show=show, keep=keep)
        with lease(run.path, app.clock):
            files = render_files(run, record.keys(before=False))  # with an edit during the wait
            record, aside = _move_newer(run, plan.chosen, record, plan)
            _write_revision(app, run, files)
            for error in plan.allowed:
                app.journal(run).append(error)
            event = RolledBack(
                rollback=record.number,
                step=record.step,
                checkpoint=record.checkpoint,
                aside=tuple(str(Path(directory) / record.aside) for directory in record.directories),
                why=reason,
            )
            _note(app, run, event)
            _unprotect(record)
            record = _set_phase(run, record, RollbackPhase.MOVED)
    released = _release(app, run) if record.phase is RollbackPhase.MOVED else []
    process = name_process(hostname(), own_process())
    record = replace(record, carried_out_by=(*record.carried_out_by, process)[-MAX_PROCESSES:])
    record = _set_phase(run, record, RollbackPhase.DONE)
    return RollbackResult(record=record, aside=tuple(aside), released=tuple(released))


def plan_undo(app: App, run: RunDir) -> RollbackRecord:
    """Return the rollback to undo: the newest. Raises InputError without a rollback."""
    record = check_may_roll_back(app, run)
    if record is None:
        raise InputError(f"{run.name}: there is no rollback to undo in {records_dir(run)}")
    return record


def undo(app: App, run: RunDir, record: RollbackRecord, timeout: timedelta, *, show: Show) -> RollbackResult:
    """Undo the rollback: restore its checkpoints and settings, and set aside checkpoints saved since.

    Raises LeaseBusy while another process rolls the train back.
    """
    with hold_rollback(app, run, record) as keep:
        return _carry_out_undo(app, run, record, timeout, show=show, keep=keep)


def _carry_out_undo(
    app: App, run: RunDir, record: RollbackRecord, timeout: timedelta, *, show: Show, keep: Callable[[], None]
) -> RollbackResult:
    chosen = _to_found(record)
    aside: list[Path] = []
    back: list[Path] = []
    if record.phase is RollbackPhase.UNDONE:
        return RollbackResult(record=record)
    if record.phase not in _UNDO_PHASES:
        # Before MOVED no task has run since, and what is newer was there before the rollback.
        is_moved = record.phase is not RollbackPhase.BEGUN
        record = _set_phase(run, record, RollbackPhase.UNDOING if is_moved else RollbackPhase.CLEARED)
    if record.phase is not RollbackPhase.RESTORED:
        _stop(app, run, f"opsctl rollback --undo from step {record.step}", timeout=timeout, show=show, keep=keep)
        with lease(run.path, app.clock):
            if record.phase is RollbackPhase.UNDOING:
                found = list_checkpoints_in(find_all_directories(run, load_train(run.config, layout=False)))
                aside = set_aside(find_newer(found, chosen), chosen.path, record.undone, None)
                record = _set_phase(run, record, RollbackPhase.CLEARED)
            for directory in record.directories:
                back += bring_back(Path(directory), record.aside, record.undone)
            _write_revision(app, run, render_files(run, record.keys(before=True)))
            _note(app, run, RollbackUndone(rollback=record.number, step=record.step))
            _unprotect(record)
            record = _set_phase(run, record, RollbackPhase.RESTORED)
    released = _release(app, run)
    record = _set_phase(run, record, RollbackPhase.UNDONE)
    return RollbackResult(record=record, aside=tuple(aside), back=tuple(back), released=tuple(released))


def _move_newer(
    run: RunDir, chosen: FoundCheckpoint, record: RollbackRecord, plan: RollbackPlan
) -> tuple[RollbackRecord, list[Path]]:
    """Set aside the checkpoints that are newer now, after the last save. The record first names the directories."""
    found = list_checkpoints_in(find_all_directories(run, load_train(run.config, layout=False)))
    if all(checkpoint.path != chosen.path for checkpoint in found):
        hint = f"opsctl rollback {run.name} --undo"
        raise RunDirError(f"{run.name}: the checkpoint {chosen.path} is gone since the rollback began", hint=hint)
    newer = find_newer(found, chosen)
    directories = dict.fromkeys([*record.directories, *(str(path.parent) for path in newer)])
    record = _set_phase(run, replace(record, directories=tuple(directories)), RollbackPhase.BEGUN)
    return record, set_aside(newer, chosen.path, record.aside, plan.pointer)


def _protect(plan: RollbackPlan) -> None:
    """Keep the chosen checkpoint of the embedded trainer from the pruning after the last save. Raises RunDirError."""
    path = plan.chosen.path
    with writing(path / manifest.KEEP):
        if plan.chosen.layout == EMBEDDED and not (path / manifest.KEEP).exists():
            manifest.keep(path, f"chosen by {_protection(plan.record)}", by=_protection(plan.record))


def _unprotect(record: RollbackRecord) -> None:
    """Drop the protection. One that stays costs the space of a checkpoint, and nothing else."""
    with contextlib.suppress(OSError):
        checkpoints = manifest.list_checkpoints(Path(record.checkpoint).parent)
        manifest.unprotect(checkpoints, by=_protection(record), newest=0)


def _protection(record: RollbackRecord) -> str:
    return f"opsctl rollback {record.number:04}"


def _stop(app: App, run: RunDir, why: str, *, timeout: timedelta, show: Show, keep: Callable[[], None]) -> None:
    """Hold the queued tasks, ask the running task to save and stop, and wait for its end. Raises WaitTimedOut."""
    arrays, clock = app.arrays(run), app.clock
    until_s = clock.monotonic() + timeout.total_seconds()
    with lease(run.path, clock):  # after a launch or a release that has begun before the rollback
        snapshot = arrays.check()
        if any(not job.is_held for job in snapshot.waiting) or (snapshot.waiting and not snapshot.history.held):
            arrays.hold(
                Reason(kind=ReasonKind.ROLLBACK, text=why)
            )  # also if held and not journalled: an earlier call was interrupted in between
    if arrays.check().active or read_switch(run, Switch.PAUSE):  # a task may have started meanwhile
        arm(run, Switch.PAUSE, why=why)
    is_waiting = False
    while active := arrays.check().active:
        if not is_waiting:
            show(f"{run.name}: waiting for {', '.join(job.full_id for job in active)} to save and stop")
            is_waiting = True
        reconcile_own_train(app, run, show=show)
        if clock.monotonic() > until_s:
            raise WaitTimedOut(
                f"{run.name}: {active[0].full_id} has not stopped within {timeout.total_seconds():.0f} s",
                hint=f"the queued tasks are held; opsctl rollback {run.name} goes on waiting",
            )
        clock.sleep(POLL_S)
        keep()
    reconcile_own_train(app, run, show=show)


def _release(app: App, run: RunDir) -> list[str]:
    if read_switch(run, Switch.PAUSE):
        disarm_switch(app, run, Switch.PAUSE)
    return app.arrays(run).release()


def _write_revision(app: App, run: RunDir, files: Files) -> None:
    parse_toml(files.config)  # never replaced by a text that cannot be read
    note_edit(run, app.journal(run), swap(run, files))


def _set_phase(run: RunDir, record: RollbackRecord, phase: RollbackPhase) -> RollbackRecord:
    record = replace(record, phase=phase)
    write_record(run, record)
    return record


def _note(app: App, run: RunDir, event: RolledBack | RollbackUndone) -> None:
    """Journal the rollback or its undo, once."""
    journal = app.journal(run)
    noted = (earlier for earlier in journal.events() if isinstance(earlier, RolledBack | RollbackUndone))
    if not any(isinstance(earlier, type(event)) and earlier.rollback == event.rollback for earlier in noted):
        journal.append(event)


def _to_found(record: RollbackRecord) -> FoundCheckpoint:
    """Return the chosen checkpoint as far as the record knows it."""
    return FoundCheckpoint(
        path=Path(record.checkpoint),
        step=record.step,
        changed_ns=0,
        layout="",
        completeness=Completeness.COMPLETE,
        reason="",
    )


def start_rollback(app: App, run: RunDir, step: int, *, by: str, reason: str) -> str:
    """Start `opsctl rollback` as a process of its own, which outlives the page that starts it; return what happens now.

    The process, the record of the rollback and its output are files of the run directory, so that every page shows
    them, also after a restart. Raises InputError and LeaseBusy while a rollback is running, and RunDirError.
    """
    check_may_roll_back(app, run)
    _refuse_second(app, run, has_lease=find_holder(records_dir(run), app.clock) is not None)
    with hold_rollback(app, run):
        _refuse_second(app, run, has_lease=False)  # started since the first look
        output = output_path(run)
        output.unlink(missing_ok=True)
        words = [*app.program, "rollback", f"--to={step}", f"--reason={reason}", "--", str(run.path)]
        pid = spawn(words, log=output, env={"NO_COLOR": "1"}).pid
        process = ProcessId.of(pid)
        started = StartedRollback(
            step=step,
            at=app.clock.now(),
            by=by,
            host=hostname(),
            pid=pid,
            started=process.started if process else 0,
        )
        try:
            run.write(start_path(run), to_text(started))
        except RunDirError:
            if process:
                process.send(signal.SIGTERM)  # it has changed nothing: this process holds the lease
            raise
    return f"the rollback to step {step} has started and continues without this page; the page shows the progress"


def _refuse_second(app: App, run: RunDir, *, has_lease: bool) -> None:
    started = read_start(run)
    if has_lease or (started and is_working(run, started, app.clock)):
        raise make_refusal(run)
