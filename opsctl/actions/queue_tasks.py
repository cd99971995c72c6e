"""Queue more tasks of a train as it is: `opsctl launch --after` with the settings in its run directory."""

from opsctl.actions.owner_actions import reconcile_own_train
from opsctl.actions.steer_train import Show, SteerResult, end_hold_alert
from opsctl.app import App
from opsctl.base.errors import InputError, RunDirError
from opsctl.launch.rollback_state import check_not_rolling_back
from opsctl.launch.train_paths import find_launched_paths, resolve_paths
from opsctl.preflight.prepare_launch import LaunchOptions, prepare_train
from opsctl.settings.loader import TrainSettings, load_train
from opsctl.state.files import MAX_SETTINGS_BYTES, read_text
from opsctl.state.run_dir import RunDir


def queue_tasks(app: App, run: RunDir, tasks: int, *, dry_run: bool, show: Show) -> SteerResult:
    """Queue tasks after the last array of a train, or start an ended train again. Preflight runs before.

    Raises ConfigError with every error of preflight, InputError, RunDirError.
    """
    if not run.is_ours:
        raise RunDirError(f"{run.path}: belongs to another user; only the owner can queue tasks")
    if tasks < 1:
        raise InputError(f"{run.name}: {tasks} tasks cannot be queued", hint="give a number from 1 on")
    check_not_rolling_back(run, app.clock)
    jobs = app.arrays(run).check().jobs
    after = jobs[-1].array if jobs else ""
    options = LaunchOptions(after=after, tasks=tasks)
    config = read_text(run.config, MAX_SETTINGS_BYTES)
    launch = prepare_train(app, load_launched(run), config, options, where=str(run.config), warn=show)
    behind = f", after array {after}" if after else ""
    what = f"{tasks} task{'s' * (tasks != 1)}"
    nodes = launch.plan.spec.nodes
    if dry_run:
        text = f"would queue {what} of {nodes} node{'s' * (nodes != 1)}{behind}"
        return SteerResult(data={"would": "queue", "after": after, "tasks": tasks}, text=text)
    submitted = launch.find_submitted()
    if submitted is None:
        reconcile_own_train(app, run, show=show)
        submitted = launch.carry_out()
        end_hold_alert(app, run)
    text = "; ".join([f"queued {what} as array {submitted.array}{behind}", *submitted.notes])
    return SteerResult(data={"done": "queued", "array": submitted.array, "tasks": submitted.tasks}, text=text)


def load_launched(run: RunDir) -> TrainSettings:
    """Return the settings with the absolute paths of the launch: opsctl dash may run in another directory."""
    train = load_train(run.config, layout=False)
    if known := find_launched_paths(train, run.config):
        return resolve_paths(train, run.path, known=known)
    return train  # the launch is then refused, because it would change the files of the queued tasks
