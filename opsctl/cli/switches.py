"""`opsctl kill-switch`, `save-switch` and `restart`: files with which the group stops, saves or restarts a train."""

import contextlib

import click

from opsctl.actions.steer_train import arm_switch, describe_switch, disarm_switch, read_switch
from opsctl.app import App
from opsctl.cli.command_names import SuggestingGroup
from opsctl.cli.options import reason_option, required_reason
from opsctl.cli.output import app_and_json, app_json_and_dry_run, print_result, print_train_result, train_argument
from opsctl.launch.rollback_state import without_rollback
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch

pause_option = click.option("--pause", is_flag=True, help="Use the pause switch: hold queued tasks, cancel none.")


@click.group("kill-switch", cls=SuggestingGroup)
def kill_switch() -> None:
    """Ask a train to save and stop, and cancel its queue.

    The queued tasks are cancelled, or held with --pause. The running task is asked to save and stop. If the
    task does not react, its ranks get a signal; later they are ended.

    \b
    opsctl kill-switch arm tiny-gpt --reason "loss has diverged"
    opsctl kill-switch show tiny-gpt
    opsctl kill-switch disarm tiny-gpt
    """


@kill_switch.command("arm")
@train_argument
@required_reason
@pause_option
@app_json_and_dry_run
def arm_kill(app: App, train: str, *, reason: str, pause: bool, dry_run: bool) -> None:
    """Arm the kill switch of TRAIN.

    Needs no right over the job, only write access to switches/ in the run directory. The queued tasks are cancelled at
    once, or held with --pause, if the train is yours; otherwise by the next command or watch cycle of the owner. The
    running task is asked to save and stop. If it does not react, its ranks get a signal and are ended in the end: see
    [guard] stop_signal, stop_after_seconds and stop_grace_seconds.

    \b
    opsctl kill-switch arm tiny-gpt --reason "loss has diverged"
    opsctl kill-switch arm tiny-gpt --pause --reason "maintenance at noon"
    """
    _arm(app, train, Switch.PAUSE if pause else Switch.KILL, reason, dry_run=dry_run)


@kill_switch.command("disarm")
@train_argument
@reason_option
@pause_option
@app_json_and_dry_run
def disarm_kill(app: App, train: str, *, reason: str, pause: bool, dry_run: bool) -> None:
    """Disarm the kill switch of TRAIN.

    Afterwards tasks of the train may run again. A running task that was asked to stop stops all the same, and cancelled
    tasks do not come back: opsctl launch adds new ones.

    \b
    opsctl kill-switch disarm tiny-gpt
    """
    run = app.find(train)
    switch = Switch.PAUSE if pause else Switch.KILL
    # A rollback stops the train by the pause switch.
    with without_rollback(run, app.clock) if pause else contextlib.nullcontext():
        _disarm(app, run, switch, reason, dry_run=dry_run)


@kill_switch.command("show")
@train_argument
@app_and_json
def show(app: App, train: str) -> None:
    """Show the armed switches of TRAIN.

    For each switch: since when, by whom and why.

    \b
    opsctl kill-switch show tiny-gpt
    """
    run = app.find(train)
    armed = list(filter(None, (read_switch(run, switch) for switch in Switch)))
    lines = [f"{run.name}: {describe_switch(switch)}" for switch in armed]
    print_result(armed, "\n".join(lines) or f"{run.name}: no switch is armed")


@click.command("save-switch")
@train_argument
@click.option("--reason", default="", help="Reason, recorded and shown with the switch.")
@click.option("--disarm", is_flag=True, help="Take the switch back, which the trainer has not answered.")
@app_json_and_dry_run
def save_switch(app: App, train: str, *, reason: str, disarm: bool, dry_run: bool) -> None:
    """Ask a train to save a checkpoint and continue.

    The running task of TRAIN saves at its next step, otherwise the next task. A trainer that does not read the save
    switch ignores it; `opsctl status` says so. A train that has ended is refused.

    \b
    opsctl save-switch tiny-gpt --reason "before the maintenance"
    """
    if disarm:
        _disarm(app, app.find(train), Switch.SAVE, reason, dry_run=dry_run)
    else:
        _arm(app, train, Switch.SAVE, reason, dry_run=dry_run)


@click.command()
@train_argument
@click.option("--reason", default="", help="Reason, recorded and shown with the request.")
@app_json_and_dry_run
def restart(app: App, train: str, *, reason: str, dry_run: bool) -> None:
    """Restart a train on its nodes, without the queue.

    The running task of TRAIN keeps its nodes: its trainer is asked to save and stop, and starts again with the files of
    the run directory as they are then. No place in the queue is lost. Afterwards the task has a new attempt.

    \b
    opsctl restart tiny-gpt --reason "new version of the data loader"
    """
    _arm(app, train, Switch.RESTART, reason, dry_run=dry_run)


def _disarm(app: App, run: RunDir, switch: Switch, why: str, *, dry_run: bool) -> None:
    was_armed = read_switch(run, switch) is not None
    if was_armed and not dry_run:
        disarm_switch(app, run, switch, why)
    word = "would be disarmed" if dry_run else "disarmed"
    text = f"the {switch} switch {'is ' * (not dry_run)}{word}" if was_armed else f"the {switch} switch was not armed"
    print_train_result(run.name, {"switch": switch.value, "was_armed": was_armed}, text)


def _arm(app: App, train: str, switch: Switch, reason: str, *, dry_run: bool) -> None:
    run = app.find(train)
    result = arm_switch(app, run, switch, reason, dry_run=dry_run)
    print_train_result(run.name, result.data, result.text)
