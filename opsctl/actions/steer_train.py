"""Hold, release and switch a train: the actions of `opsctl hold`, `release`, `save-switch` and `kill-switch arm`, and
of the pages of `opsctl dash`."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from opsctl.actions.owner_actions import reconcile_own_train
from opsctl.app import App
from opsctl.base.errors import InputError, NotAllowed, OpsctlError, RunDirError, writing
from opsctl.base.nodesets import nodeset
from opsctl.base.statements import state
from opsctl.launch.rollback_state import check_may_hold, check_not_rolling_back, without_rollback
from opsctl.launch.submit import Launch, SubmittedArray
from opsctl.launch.switch_readers import reads_save_switch
from opsctl.launch.train_arrays import TrainSnapshot, list_arrays, name_arrays, take_snapshot
from opsctl.state.events import SwitchDisarmed
from opsctl.state.journal import actor
from opsctl.state.reasons import as_written
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Armed, RequestKind, Switch, arm, disarm, journal_switches, read, request

log = logging.getLogger(__name__)
QUEUE_ACTION = {Switch.KILL: "cancels", Switch.PAUSE: "holds"}
QUEUE_STATE = {Switch.KILL: "cancelled", Switch.PAUSE: "held", Switch.SAVE: "kept", Switch.RESTART: "kept"}
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SteerResult:
    """What was done, or would be: as data and as a sentence."""

    data: dict[str, object]
    text: str

    @property
    def arrays(self) -> list[str]:
        """The arrays that were held or released, the last first."""
        return cast("list[str]", self.data.get("arrays", []))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchResult(SteerResult):
    """What arming a switch did, or would do."""

    was_armed: bool
    done: tuple[str, ...]
    """The steps that were applied to the queue at once."""


def hold_train(app: App, run: RunDir, reason: str, *, dry_run: bool = False, show: Show = log.info) -> SteerResult:
    """Hold the queued tasks; for a job of another user, arm the pause switch.

    Raises InputError if nothing is queued, and while a rollback runs.
    """
    check_may_hold(run, app.clock)
    if not dry_run:
        reconcile_own_train(app, run, show=show)
    arrays = app.arrays(run)
    snapshot = arrays.check()
    if not snapshot.waiting:
        raise InputError(f"{run.name}: nothing is queued, so there is nothing to hold", hint=_suggestion(run, snapshot))
    ids = list_arrays(snapshot.waiting)
    if dry_run:
        return SteerResult(data={"would": "hold", "arrays": ids}, text=f"would hold {name_arrays(ids)}")
    try:
        held = arrays.hold(as_written(reason or "opsctl hold"))
    except NotAllowed:
        arm(run, Switch.PAUSE, why=reason or "opsctl hold by a user who does not own the job")
        text = (
            "the job is not yours to hold, so the pause switch is armed instead: the running task is asked to save and"
            " stop, and the next opsctl command or watch cycle of the owner holds the queued tasks;"
            f" opsctl release {run.name} takes it back"
        )
        return SteerResult(data={"done": "pause-switch", "arrays": []}, text=text)
    text = f"held {name_arrays(held)}; {_age(app)}; opsctl release {run.name} lets it go on"
    return SteerResult(data={"done": "held", "arrays": held}, text=text)


def release_train(
    app: App, run: RunDir, exclude: str, *, why: str = "", dry_run: bool = False, show: Show = log.info
) -> SteerResult:
    """Release the queued tasks and disarm the pause switch; for a job of another user, leave a request.

    Raises InputError if nothing is queued, held or paused, and while a rollback runs or waits to be finished.
    """
    nodeset(exclude)
    check_not_rolling_back(run, app.clock)
    if dry_run:
        return _release(app, run, exclude, why, dry_run=True)
    reconcile_own_train(app, run, show=show)
    with without_rollback(run, app.clock):
        result = _release(app, run, exclude, why, dry_run=False)
    end_hold_alert(app, run)
    return result


def _release(app: App, run: RunDir, exclude: str, why: str, *, dry_run: bool) -> SteerResult:
    arrays = app.arrays(run)
    snapshot = arrays.check()
    paused = read_switch(run, Switch.PAUSE)
    # Held in the journal only: an earlier release was interrupted before it was recorded.
    if not (snapshot.waiting or paused or snapshot.history.held or snapshot.history.repair):
        raise InputError(
            f"{run.name}: nothing is queued, so there is nothing to release", hint=_suggestion(run, snapshot)
        )
    if dry_run:
        also = f", with {exclude} excluded" if exclude else ""
        first = f"disarm the pause switch of {paused.by} and " if paused else ""
        ids = list_arrays(snapshot.waiting)
        text = f"would {first}release {name_arrays(ids) or 'nothing that is queued'}{also}"
        would = {"would": "release", "arrays": ids, "disarms": bool(paused), "excludes": exclude}
        return SteerResult(data=would, text=text)
    parts = []
    if paused:
        disarm_switch(app, run, Switch.PAUSE, why)
        parts.append("the pause switch is disarmed")
    try:
        needed = max((job.node_count for job in snapshot.waiting), default=1)
        excluded = arrays.exclude(exclude, needed=needed) if exclude else ""
        released = arrays.release(why)
    except NotAllowed:
        request(run, RequestKind.RELEASE, exclude=exclude)
        parts.append(
            "the job is not yours to release, so a request is left: the next `opsctl watch` of the owner, or"
            f" any opsctl command of the owner for {run.name}, carries it out"
        )
        return SteerResult(data={"done": "request", "arrays": []}, text="; ".join(parts))
    parts += [f"excluded now: {excluded}"] if excluded else []
    parts += [f"released {name_arrays(released)}"] if released else ["nothing is queued"]
    return SteerResult(data={"done": "released", "arrays": released, "excluded": excluded}, text="; ".join(parts))


def arm_switch(app: App, run: RunDir, switch: Switch, reason: str, *, dry_run: bool = False) -> SwitchResult:
    """Arm a switch and apply it to the queue if the train is ours. Raises InputError where no task would save."""
    before = read_switch(run, switch)
    snapshot, away = _look(app, run)
    if switch is Switch.RESTART and snapshot is not None and not snapshot.active:
        raise InputError(
            f"{run.name}: nothing runs, so there is nothing to restart", hint="the next task runs the files as they are"
        )
    if switch is Switch.SAVE and snapshot is not None and not snapshot.is_queued:
        raise InputError(
            f"{run.name}: nothing is running or queued, so no task would save", hint=f"opsctl status {run.name}"
        )
    done: list[str] = []
    is_queue_done = False
    if not dry_run:
        arm(run, switch, why=reason)
        if run.is_ours:  # for a team member, the file itself is the record
            journal_switches(run, app.journal(run), (switch,))
            done, away = _act_on_queue(app, run, switch, away)
            is_queue_done = snapshot is not None and not away
            if snapshot and is_queue_done and not done:
                done = name_done_by_guard(switch, snapshot)
    if before:
        text = "; ".join([f"already armed: {describe_switch(before)}", *done])
    else:
        would_act = dry_run and run.is_ours
        parts = [*done, *_coming(run, switch, snapshot, away, is_queue_done=is_queue_done, would_act=would_act)]
        parts = parts or [f"the queued tasks are {QUEUE_STATE[switch]} already"]
        text = f"the {switch} switch {'would be' if dry_run else 'is'} armed: {'; '.join(parts)}"
    was_armed = before is not None
    data: dict[str, object] = {"switch": switch.value, "was_armed": was_armed, "done": done}
    return SwitchResult(data=data, text=text, was_armed=was_armed, done=tuple(done))


def describe_switch(armed: Armed) -> str:
    why = f": {armed.why}" if armed.why else ""
    return f"{armed.switch} by {armed.by} since {armed.since:%Y-%m-%d %H:%M} UTC{why}"


def _suggestion(run: RunDir, snapshot: TrainSnapshot) -> str:
    return (
        f"opsctl kill-switch arm {run.name} --pause stops what runs" if snapshot.active else f"opsctl status {run.name}"
    )


def _age(app: App) -> str:
    """Return the effect of a hold on the queue position, which depends on the priority plugin of Slurm."""
    if app.slurm.limits().priority == "priority/multifactor":
        return "its age in the queue is kept"
    return "this Slurm keeps no age, so after release the train starts at the back of the queue"


def _look(app: App, run: RunDir) -> tuple[TrainSnapshot | None, str]:
    """Return the train's rows of the queue, or why they are unknown."""
    try:
        return take_snapshot(run, app.journal(run), app.slurm.jobs()), ""
    except OpsctlError as error:
        return None, error.message


def _act_on_queue(app: App, run: RunDir, switch: Switch, away: str) -> tuple[list[str], str]:
    """Apply the kill and pause switches to the queue. Return what was done, or why the queue could not be reached."""
    if switch not in QUEUE_ACTION or away:
        return [], away
    from opsctl.guard.apply_switches import apply_switches  # noqa: PLC0415 (slow import: arming only)
    from opsctl.monitor.reconcile import read_rules  # noqa: PLC0415 (as above)

    try:
        return apply_switches(app.arrays(run), read_rules(run)), ""
    except (OpsctlError, OSError) as error:
        return [], str(error)


def name_done_by_guard(switch: Switch, snapshot: TrainSnapshot) -> list[str]:
    """Return what a guard has done that saw the switch before this command came to the queue of `snapshot`."""
    tasks = [job for job in snapshot.waiting if switch is Switch.KILL or not job.is_held]
    acts = switch in QUEUE_ACTION and tasks
    return [f"{QUEUE_STATE[switch]} the queued tasks of {name_arrays(list_arrays(tasks))}"] if acts else []


def _coming(
    run: RunDir, switch: Switch, snapshot: TrainSnapshot | None, away: str, *, is_queue_done: bool, would_act: bool
) -> list[str]:
    """Return what will happen because of an armed switch. `would_act`: this is the dry run of the owner."""
    if switch is Switch.SAVE:
        who = "the running task" if snapshot is None or snapshot.active else "the next task"
        saves = f"{who} saves a checkpoint at its next step and goes on, if its trainer reads the save switch"
        return [saves] if reads_save_switch(run) else [saves, str(state("checkpoint.not_read"))]
    if switch is Switch.RESTART:
        return [describe_stop_of(run), "the trainer starts again on the same nodes, with the files as they are then"]
    then = f"{QUEUE_ACTION[switch]} the queued tasks"
    by_owner = f"the next opsctl command or watch cycle of the owner {then}"
    if snapshot is None:
        return [f"{by_owner}; Slurm does not answer now: {away}", describe_stop_of(run)]
    who_acts = f"this command {then}" if would_act else by_owner
    parts = [who_acts] if snapshot.waiting and not is_queue_done else []
    parts += [describe_stop_of(run)] if snapshot.active else []
    is_idle = not snapshot.waiting and not snapshot.active
    return parts + ["no task runs or is queued; a launch is refused until the switch is disarmed"] * is_idle


def describe_stop_of(run: RunDir) -> str:
    """Return how the running task is stopped."""
    from opsctl.guard.escalation import describe_plan  # noqa: PLC0415 (slow import: arming only)
    from opsctl.monitor.reconcile import read_rules  # noqa: PLC0415 (as above)

    try:
        return f"the running task is asked to save and stop; {describe_plan(run, read_rules(run))}"
    except (OpsctlError, OSError):
        return "the running task is asked to save and stop"


def read_switch(run: RunDir, switch: Switch) -> Armed | None:
    """Return the switch if it is armed. Raises RunDirError if the file cannot be read."""
    try:
        return read(run, switch)
    except OSError as error:
        raise RunDirError(f"{run.switches}: {error.strerror}: unknown whether a switch is armed") from error


def disarm_switch(app: App, run: RunDir, switch: Switch, why: str = "") -> None:
    """Disarm the switch. Raises RunDirError."""
    if run.is_ours:
        # Journal first: the file does not record who removed it. After an interruption both show the switch as armed.
        app.journal(run).append(SwitchDisarmed(switch=switch.value, by=actor(), why=why))
    with writing(run.switches / switch.value):
        disarm(run, switch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    arrays: list[str]
    """The released arrays, the last first."""
    excluded: str
    """Every node that is excluded now; empty if no exclusion was requested."""


def submit(app: App, launch: Launch, *, show: Show = log.info) -> SubmittedArray:
    """Submit a planned launch, unless an interrupted call has, and end the alert of a hold that the launch ends."""
    if submitted := launch.find_submitted():
        return submitted
    reconcile_own_train(app, launch.run, show=show)
    submitted = launch.carry_out()
    end_hold_alert(app, launch.run)
    return submitted


def end_hold_alert(app: App, run: RunDir) -> None:
    """Record that a person has ended the hold, if this user owns the alerts: pages and `opsctl status` need no watch
    cycle for it, and the next one sends it. Raises nothing."""
    from opsctl.watchdogs.failures import failures  # noqa: PLC0415 (slow import: all watchdogs)

    ledger = app.alerting.ledger
    with contextlib.suppress(OpsctlError, OSError):
        open_keys = {key for key, entry in ledger.entries().items() if entry.is_open}
        findings = failures(run, app.journal(run).events(), app.clock.now())
        over = [finding for finding in findings if finding.is_ok and finding.key in open_keys]
        if over and ledger.is_own:
            ledger.record(over)
