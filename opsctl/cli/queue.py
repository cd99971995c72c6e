"""`opsctl hold`, `release` and `cancel`: act on every array of a train."""

import click

from opsctl.actions.owner_actions import reconcile_own_train
from opsctl.actions.steer_train import end_hold_alert, hold_train, release_train
from opsctl.app import App
from opsctl.base.errors import InputError, NotAllowed
from opsctl.cli.options import reason_option
from opsctl.cli.output import app_json_and_dry_run, complete_trains, print_on_stderr, print_train_result, train_argument
from opsctl.launch.train_arrays import list_arrays, name_arrays
from opsctl.state.reasons import as_written
from opsctl.state.run_dir import RunDir


@click.command()
@train_argument
@reason_option
@app_json_and_dry_run
def hold(app: App, train: str, *, reason: str, dry_run: bool) -> None:
    """Hold the queued tasks of a train.

    The running task of TRAIN continues. If you may not hold the job but may write to the run directory, the command
    arms the pause switch: the running task is asked to save and stop, and the next command or watch cycle of the owner
    holds the queued tasks.

    \b
    opsctl hold tiny-gpt --reason "bad loss since step 4000"
    """
    run = app.find(train)
    result = hold_train(app, run, reason, dry_run=dry_run, show=print_on_stderr)
    print_train_result(run.name, result.data, result.text)


@click.command()
@train_argument
@click.option("--exclude", metavar="NODES", default="", help="Exclude these nodes from the train as well.")
@reason_option
@app_json_and_dry_run
def release(app: App, train: str, *, exclude: str, reason: str, dry_run: bool) -> None:
    """Release a held or paused train.

    Lets the queued tasks of TRAIN start, and disarms the pause switch. If you may not release the job, the command
    leaves a request: the next `opsctl watch` or opsctl command of the owner carries it out.

    \b
    opsctl release tiny-gpt
    opsctl release tiny-gpt --exclude node[003-004]
    """
    run = app.find(train)
    result = release_train(app, run, exclude, why=reason, dry_run=dry_run, show=print_on_stderr)
    print_train_result(run.name, result.data, result.text)


@click.command()
@click.argument("train", metavar="TRAIN[_TASK]", shell_complete=complete_trains)
@click.option("--queued-only", is_flag=True, help="Cancel only queued tasks.")
@click.option("--reason", default="opsctl cancel", help="Reason, recorded in the journal.")
@app_json_and_dry_run
def cancel(app: App, train: str, *, queued_only: bool, reason: str, dry_run: bool) -> None:
    """Cancel a train, or one task of a train.

    Cancels every array of TRAIN, or the task _TASK. The place in the queue is lost; `opsctl hold` keeps it. Slurm ends
    the running task without time to save; `opsctl kill-switch` gives the trainer that time.

    \b
    opsctl cancel tiny-gpt
    opsctl cancel tiny-gpt_4
    """
    run, task = _train_and_task(app, train)
    if task is not None and queued_only:
        raise InputError(
            f"{train}: --queued-only cancels all queued tasks of a train, not one task",
            hint=f"opsctl cancel {run.name} --queued-only, or opsctl cancel {train}",
        )
    if not dry_run:
        reconcile_own_train(app, run, show=print_on_stderr)
    arrays = app.arrays(run)
    snapshot = arrays.check()
    ours = snapshot.waiting if queued_only else [*snapshot.waiting, *snapshot.active]
    ids = list_arrays(ours)
    if not ids and not snapshot.history.cancelling:
        raise InputError(f"{run.name}: nothing to cancel is queued or running", hint=f"opsctl status {run.name}")
    if dry_run:
        text = f"would cancel {name_arrays(ids) or 'nothing that is queued' if task is None else f'task {task}'}"
        print_train_result(run.name, {"would": "cancel", "arrays": ids, "task": task}, text)
        return
    try:
        why = as_written(reason)
        ended = arrays.cancel(why, queued_only=queued_only) if task is None else [arrays.cancel_task(task, why)]
    except NotAllowed as error:
        raise NotAllowed(
            f"{run.name}: the job is not yours to cancel",
            hint=f"opsctl kill-switch arm {run.name} --reason ... asks it to save and stop, and cancels the queue",
        ) from error
    end_hold_alert(app, run)
    print_train_result(run.name, {"done": "cancelled", "jobs": ended}, f"cancelled {', '.join(ended)}")


def _train_and_task(app: App, text: str) -> tuple[RunDir, int | None]:
    """Return the train and the task of `TRAIN_TASK`. A train that is itself named `gpt_3` comes first."""
    name, _, task = text.rpartition("_")
    try:
        return app.find(text), None
    except InputError:
        if not (name and task.isascii() and task.isdigit()):
            raise
    return app.find(name), int(task)
