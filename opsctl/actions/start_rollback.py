"""Rollbacks in the background: `opsctl rollback` as a process of its own, which outlives the page that starts it.

The process, the record of the rollback and its output are files of the run directory, so that every page shows them,
also after a restart.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.actions.describe_rollback import is_result
from opsctl.actions.rollback import hold_rollback
from opsctl.actions.rollback_plan import check_may_roll_back
from opsctl.app import App
from opsctl.errors import InputError, RunDirError
from opsctl.host.processes import ProcessId
from opsctl.host.system import hostname, spawn
from opsctl.launch.rollback_record import FINAL, UNDO, RollbackRecord, read_newest, records_dir
from opsctl.ports import Clock
from opsctl.state.files import read_json, read_range
from opsctl.state.lease import LeaseHolder, find_holder
from opsctl.state.run_dir import RunDir

SHOWN_FOR = timedelta(days=1)
"""The result of a rollback that a page started is shown for this long."""
MAX_START_BYTES = 4096
MAX_OUTPUT_BYTES = 4096
MAX_LINES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRollback:
    """The newest rollback that a page has started."""

    step: int
    at: datetime
    by: str
    host: str
    pid: int
    started: int

    @property
    def is_here(self) -> bool:
        """Whether this machine can see its process. Of a process on another machine, only its lease is known."""
        return self.host == hostname()

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

    @property
    def is_interrupted(self) -> bool:
        return not self.is_running and self.record is not None and self.record.phase not in FINAL

    @property
    def is_undo(self) -> bool:
        return self.record is not None and self.record.phase in UNDO - FINAL

    @property
    def is_done(self) -> bool:
        """Whether the process has printed the result of the rollback."""
        return not self.is_running and any(map(is_result, self.output))

    @property
    def has_failed(self) -> bool:
        """Whether the process has ended without a result."""
        return not self.is_running and not self.is_done and self.started is not None and self.started.is_here


def start_rollback(app: App, run: RunDir, step: int, *, by: str, reason: str) -> str:
    """Start the rollback and return what happens now. Raises InputError and LeaseBusy while one is running, and
    RunDirError."""
    check_may_roll_back(app, run)
    _refuse_second(run, has_lease=find_holder(records_dir(run), app.clock) is not None)
    with hold_rollback(app, run):
        _refuse_second(run, has_lease=False)  # started since the first look
        output = _output_path(run)
        output.unlink(missing_ok=True)
        words = [*app.program, "rollback", f"--to={step}", f"--reason={reason}", "--", str(run.path)]
        pid = spawn(words, log=output, env={"NO_COLOR": "1"}).pid
        process = ProcessId.of(pid)
        facts = {
            "step": step,
            "at": app.clock.now().isoformat(),
            "by": by,
            "host": hostname(),
            "pid": pid,
            "started": process.started if process else 0,
        }
        try:
            run.write(_start_path(run), json.dumps(facts) + "\n")
        except RunDirError:
            if process:
                process.send(signal.SIGTERM)  # it has changed nothing: this process holds the lease
            raise
    return f"the rollback to step {step} has started and continues without this page; the page shows the progress"


def read_rollback_state(run: RunDir, clock: Clock) -> RollbackState | None:
    """Return the rollback that a page has to show; None without any. Files that cannot be read show nothing."""
    try:
        record = read_newest(run)
    except (OSError, ValueError):
        record = None
    started, holder = _read_start(run), find_holder(records_dir(run), clock)
    is_from_page = started is not None and (started.is_alive or started.is_holder(holder))
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
    return RollbackState(step=step, record=record, is_running=is_running, started=started, output=output)


def check_not_rolling_back(run: RunDir, clock: Clock) -> None:
    """Raise InputError while a rollback runs, or waits to be finished: a task would start from a wrong checkpoint."""
    state = read_rollback_state(run, clock)
    if state and state.is_running:
        raise _is_running(run)
    if state and state.is_interrupted:
        what, option = ("undo of a rollback", " --undo") if state.is_undo else ("rollback", "")
        raise InputError(
            f"{run.name}: a{'n' * state.is_undo} {what} was interrupted",
            hint=f"opsctl rollback {run.name}{option} finishes the {what}",
        )


def _is_running(run: RunDir) -> InputError:
    return InputError(f"{run.name}: a rollback is running", hint=f"opsctl status {run.name}")


def _refuse_second(run: RunDir, *, has_lease: bool) -> None:
    started = _read_start(run)
    if has_lease or (started and started.is_alive):
        raise _is_running(run)


def _read_start(run: RunDir) -> StartedRollback | None:
    try:
        fields = read_json(_start_path(run), MAX_START_BYTES)
        at = datetime.fromisoformat(fields["at"])
        return StartedRollback(
            step=int(fields["step"]),
            at=at if at.tzinfo else at.astimezone(),
            by=str(fields["by"]),
            host=str(fields["host"]),
            pid=int(fields["pid"]),
            started=int(fields["started"]),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _read_output(run: RunDir) -> tuple[str, ...]:
    try:
        data = read_range(_output_path(run), -MAX_OUTPUT_BYTES, MAX_OUTPUT_BYTES)[0]
    except OSError:
        return ()
    lines = [line.strip() for line in data.decode(errors="replace").splitlines()]
    return tuple(filter(None, lines))[-MAX_LINES:]


def _start_path(run: RunDir) -> Path:
    return records_dir(run) / "started.json"


def _output_path(run: RunDir) -> Path:
    return records_dir(run) / "output.txt"
