"""Hold and release the queued tasks of a train, also for a user who does not own the job; read and disarm switches."""

import contextlib
from dataclasses import dataclass

from opsctl.app import App
from opsctl.base.errors import NotAllowed, OpsctlError, RunDirError, writing
from opsctl.base.findings import Level
from opsctl.launch.train_arrays import TrainArrays, TrainSnapshot
from opsctl.state.events import SwitchDisarmed
from opsctl.state.journal import actor
from opsctl.state.reasons import as_written
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Armed, RequestKind, Switch, arm, disarm, read, request


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


def hold_or_pause(arrays: TrainArrays, reason: str) -> list[str] | None:
    """Hold the queued tasks and return their arrays.

    If the job belongs to another user, arm the pause switch instead and return None.
    """
    try:
        return arrays.hold(as_written(reason or "opsctl hold"))
    except NotAllowed:
        arm(arrays.run, Switch.PAUSE, why=reason or "opsctl hold by a user who does not own the job")
        return None


def release_or_request(arrays: TrainArrays, snapshot: TrainSnapshot, exclude: str, why: str) -> Released | None:
    """Exclude the nodes `exclude`, and release the queued tasks.

    If the job belongs to another user, leave a request for the owner instead and return None.
    """
    try:
        needed = max((job.node_count for job in snapshot.waiting), default=1)
        excluded = arrays.exclude(exclude, needed=needed) if exclude else ""
        return Released(arrays=arrays.release(why), excluded=excluded)
    except NotAllowed:
        request(arrays.run, RequestKind.RELEASE, exclude=exclude)
        return None


def end_hold_alert(app: App, run: RunDir) -> None:
    """Record that a person has ended the hold, if this user owns the alerts: pages and `opsctl status` need no watch
    cycle for it, and the next one sends it. Raises nothing."""
    from opsctl.watchdogs.failures import failures  # noqa: PLC0415 (slow import: all watchdogs)

    ledger = app.alerting.ledger
    with contextlib.suppress(OpsctlError, OSError):
        open_keys = {key for key, entry in ledger.levels().items() if entry.level is not Level.OK}
        findings = failures(run, app.journal(run).events(), app.clock.now())
        over = [finding for finding in findings if finding.level is Level.OK and finding.key in open_keys]
        if over and ledger.is_own:
            ledger.record(over)
