"""Rollbacks in the background: `opsctl rollback` as a process of its own, which outlives the page that starts it.

The process, the record of the rollback and its output are files of the run directory, so that every page shows them,
also after a restart.
"""

import signal

from opsctl.actions.rollback import hold_rollback
from opsctl.actions.rollback_plan import check_may_roll_back
from opsctl.app import App
from opsctl.base.errors import RunDirError
from opsctl.base.nodesets import hostname
from opsctl.host.processes import ProcessId
from opsctl.host.system import spawn
from opsctl.launch.rollback_state import (
    StartedRollback,
    is_working,
    make_refusal,
    output_path,
    read_start,
    records_dir,
    start_path,
)
from opsctl.state.lease import find_holder
from opsctl.state.records import to_text
from opsctl.state.run_dir import RunDir


def start_rollback(app: App, run: RunDir, step: int, *, by: str, reason: str) -> str:
    """Start the rollback and return what happens now. Raises InputError and LeaseBusy while one is running, and
    RunDirError."""
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
