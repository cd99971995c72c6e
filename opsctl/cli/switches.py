"""`opsctl kill-switch` and `opsctl save-switch`: files with which the group stops or saves a train."""

from __future__ import annotations

from dataclasses import asdict

import click

from opsctl.app import App
from opsctl.cli.output import dry_run_option, json_option, print_json, print_text, train_argument
from opsctl.errors import RunDirError, cannot_write
from opsctl.state.journal import EventKind, actor
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Armed, Switch, arm, disarm, journal_switches, read

EFFECT = {
    Switch.KILL: "the running task saves and stops; queued tasks are cancelled",
    Switch.PAUSE: "the running task saves and stops; queued tasks are held",
    Switch.SAVE: "the running task saves a checkpoint and goes on",
}

pause_option = click.option("--pause", is_flag=True, help="Use the pause switch: hold queued tasks, cancel none.")


@click.group("kill-switch")
def kill_switch() -> None:
    """Stop a train cleanly: save, exit, cancel the queue.

    The running task saves a checkpoint and exits, and the queued tasks are cancelled. With --pause, the queued tasks
    are held.

    \b
    opsctl kill-switch arm tiny-gpt --reason "loss has diverged"
    opsctl kill-switch show tiny-gpt
    opsctl kill-switch disarm tiny-gpt
    """


@kill_switch.command("arm")
@train_argument
@click.option("--reason", required=True, help="Reason, recorded and shown with the switch.")
@pause_option
@dry_run_option
@json_option
@click.pass_obj
def arm_kill(app: App, train: str, *, reason: str, pause: bool, dry_run: bool, as_json: bool) -> None:
    """Arm the kill switch of TRAIN.

    Needs no right over the job, only write access to switches/ in the run directory.

    \b
    opsctl kill-switch arm tiny-gpt --reason "loss has diverged"
    opsctl kill-switch arm tiny-gpt --pause --reason "maintenance at noon"
    """
    _arm(app, train, Switch.PAUSE if pause else Switch.KILL, reason, dry_run=dry_run, as_json=as_json)


@kill_switch.command("disarm")
@train_argument
@pause_option
@dry_run_option
@json_option
@click.pass_obj
def disarm_kill(app: App, train: str, *, pause: bool, dry_run: bool, as_json: bool) -> None:
    """Disarm the kill switch of TRAIN.

    Afterwards tasks of the train may run again.

    \b
    opsctl kill-switch disarm tiny-gpt
    """
    run = app.find(train)
    switch = Switch.PAUSE if pause else Switch.KILL
    was_armed = read_switch(run, switch) is not None
    if was_armed and not dry_run:
        disarm_switch(app, run, switch)
    word = "would be disarmed" if dry_run else "disarmed"
    text = f"the {switch} switch {'is ' * (not dry_run)}{word}" if was_armed else f"the {switch} switch was not armed"
    _print_result(run, text, {"switch": switch.value, "was_armed": was_armed}, as_json=as_json)


@kill_switch.command("show")
@train_argument
@json_option
@click.pass_obj
def show(app: App, train: str, *, as_json: bool) -> None:
    """Show the armed switches of TRAIN.

    For each switch: since when, by whom and why.

    \b
    opsctl kill-switch show tiny-gpt
    """
    run = app.find(train)
    switches = [read_switch(run, switch) for switch in Switch]
    armed_switches = [armed for armed in switches if armed]
    if as_json:
        print_json([asdict(armed) for armed in armed_switches])
        return
    for armed in armed_switches:
        print_text(f"{run.name}: {_described(armed)}")
    if not armed_switches:
        print_text(f"{run.name}: no switch is armed")


@click.command("save-switch")
@train_argument
@click.option("--reason", default="", help="Reason, recorded and shown with the switch.")
@dry_run_option
@json_option
@click.pass_obj
def save_switch(app: App, train: str, *, reason: str, dry_run: bool, as_json: bool) -> None:
    """Make a train save a checkpoint now and continue.

    TRAIN saves at its next step.

    \b
    opsctl save-switch tiny-gpt --reason "before the maintenance"
    """
    _arm(app, train, Switch.SAVE, reason, dry_run=dry_run, as_json=as_json)


def _arm(app: App, train: str, switch: Switch, reason: str, *, dry_run: bool, as_json: bool) -> None:
    run = app.find(train)
    before = read_switch(run, switch)
    if not dry_run:
        arm(run, switch, why=reason)
        if run.is_ours:  # for a team member, the file itself is the record
            journal_switches(run, app.journal(run), (switch,))
    if before:
        text = f"already armed: {_described(before)}"
    else:
        text = f"the {switch} switch {'would be' if dry_run else 'is'} armed: {EFFECT[switch]}"
    _print_result(run, text, {"switch": switch.value, "was_armed": before is not None}, as_json=as_json)


def read_switch(run: RunDir, switch: Switch) -> Armed | None:
    """Return the switch if it is armed. Raises RunDirError if the file cannot be read."""
    try:
        return read(run, switch)
    except OSError as error:
        raise RunDirError(f"{run.switches}: {error.strerror}: unknown whether a switch is armed") from error


def disarm_switch(app: App, run: RunDir, switch: Switch) -> None:
    """Disarm the switch. Raises RunDirError."""
    if run.is_ours:
        # Journal first: the file does not record who removed it. After an interruption both show the switch as armed.
        app.journal(run).append(EventKind.DISARMED, switch=switch.value, by=actor())
    try:
        disarm(run, switch)
    except OSError as error:
        raise cannot_write(run.switches / switch.value, error) from error


def _described(armed: Armed) -> str:
    why = f": {armed.why}" if armed.why else ""
    return f"{armed.switch} by {armed.by} since {armed.since:%Y-%m-%d %H:%M} UTC{why}"


def _print_result(run: RunDir, text: str, data: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json({"train": run.name, **data})
    else:
        print_text(f"{run.name}: {text}")
