"""Apply the kill and pause switches to a train from outside its job: by a command, a watch cycle, or nobody's guard.

The guard stops the running task. The queued tasks need no guard: they may be held, or no task may run at all.
"""

from collections.abc import Sequence
from datetime import timedelta

from opsctl.base.model import Job
from opsctl.guard.escalation import plan_stop, reads_stop_request
from opsctl.guard.stop_request import StopKind
from opsctl.launch.train_arrays import TrainArrays, list_arrays, name_arrays
from opsctl.settings.loader import GuardSettings
from opsctl.state import switches
from opsctl.state.events import SwitchArmed
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.switches import Armed, Switch

GUARD_SPARE = timedelta(minutes=2)
"""How much longer than its own plan a guard may take, before its task is cancelled from outside."""


def apply_switches(arrays: TrainArrays, rules: GuardSettings, jobs: Sequence[Job] | None = None) -> list[str]:
    """Cancel or hold the queued tasks of a train with an armed switch; return one sentence per action.

    A running task whose guard has not ended it in time is cancelled. Idempotent. Raises OSError and OpsctlError.
    """
    kill, pause = switches.read(arrays.run, Switch.KILL), switches.read(arrays.run, Switch.PAUSE)
    armed = kill or pause
    if armed is None:
        return []
    snapshot, reason, done = arrays.check(jobs), describe(armed), []
    if kill and snapshot.waiting:
        # A guard that saw the switch may have cancelled the tasks since the look at the queue.
        cancelled = arrays.cancel(reason, queued_only=True) or list_arrays(snapshot.waiting)
        done.append(f"cancelled the queued tasks of {name_arrays(cancelled)}")
    elif not kill and any(not job.is_held for job in snapshot.waiting):
        done.append(f"held the queued tasks of {name_arrays(arrays.hold(reason))}")
    if snapshot.active and _is_overdue(arrays, rules, armed):
        for job in snapshot.active:
            cancelled = [arrays.cancel_task(task, reason) for task in job.tasks]
            done += [f"cancelled {name}, which did not stop" for name in cancelled]
    return done


def describe(armed: Armed) -> Reason:
    """Return the reason for an action: `kill switch by alice: bad loss`."""
    return Reason(kind=ReasonKind.SWITCH, switch=armed.switch.value, by=armed.by, text=armed.why)


def _is_overdue(arrays: TrainArrays, rules: GuardSettings, armed: Armed) -> bool:
    """Whether the guard should have ended the task long ago. Counted from the journal: files carry foreign clocks."""
    events = [event for event in arrays.journal.events() if isinstance(event, SwitchArmed)]
    since = next((event.when for event in reversed(events) if event.switch == armed.switch.value), None)
    if since is None:
        return False
    kind = StopKind.KILL if armed.switch is Switch.KILL else StopKind.PAUSE
    plan = plan_stop(kind, since, rules, reads_request=reads_stop_request(arrays.run))
    return plan.kill_at is not None and arrays.journal.clock.now() > plan.kill_at + GUARD_SPARE
