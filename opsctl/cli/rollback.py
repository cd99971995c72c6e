"""`opsctl rollback`: go back to an earlier checkpoint, or undo the newest rollback."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from opsctl.actions.describe_rollback import (
    describe_plan,
    describe_queue,
    describe_release,
    describe_result,
    describe_undo,
    list_names,
)
from opsctl.actions.rollback import plan_and_roll_back, plan_undo, undo
from opsctl.actions.rollback_plan import RollbackOptions, RollbackPlan, plan_rollback
from opsctl.app import App
from opsctl.base.errors import InputError, OpsctlError
from opsctl.checkpoints.scan import list_checkpoints_in
from opsctl.cli.options import INTERVAL, allow_option, reason_option
from opsctl.cli.output import (
    app_json_and_dry_run,
    print_on_stderr,
    print_result,
    train_argument,
    wants_json,
)
from opsctl.launch.revisions import diff, read_files
from opsctl.launch.rollback_state import RollbackPhase
from opsctl.launch.train_arrays import TrainSnapshot
from opsctl.settings.loader import load_train
from opsctl.state.run_dir import RunDir, find
from opsctl.telemetry.progress.signs import find_all_directories
from opsctl.trainer.sample_order import check_range


def _check_ranges(_context: click.Context, _param: click.Parameter, ranges: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(map(check_range, ranges))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def complete_steps(context: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return the steps of the usable checkpoints of the train on the command line; none if they are unknown."""
    from opsctl.app import build  # noqa: PLC0415 (--help starts without pydantic)

    # An option without its value, as while the value is typed, ends click's parsing before the arguments.
    name = context.params.get("train") or next(iter(context.args), "")
    try:
        run = find(build(context.find_root().params.get("site")).root, str(name))
        found = list_checkpoints_in(find_all_directories(run, load_train(run.config, layout=False)))
    except (OpsctlError, OSError):
        return []
    steps = {checkpoint.step for checkpoint in found if not checkpoint.is_partial and checkpoint.step is not None}
    return [str(step) for step in sorted(steps, reverse=True) if str(step).startswith(begun)]


@click.command()
@train_argument
@click.option(
    "--to",
    "step",
    metavar="STEP",
    type=click.IntRange(min=0),
    shell_complete=complete_steps,
    help="Step of the checkpoint (default: before the loss alert).",
)
@click.option(
    "--skip-samples",
    "skipped",
    metavar="A-B",
    multiple=True,
    callback=_check_ranges,
    help="Samples to skip, counted from 0; repeatable.",
)
@click.option(
    "--lr-scale",
    metavar="X",
    type=click.FloatRange(min=0, min_open=True),
    help="Factor of the learning rates in the settings.",
)
@click.option("--undo", "is_undo", is_flag=True, help="Undo the newest rollback.")
@click.option(
    "--timeout",
    type=INTERVAL,
    default="30m",
    show_default=True,
    help="Longest wait for the running task to stop.",
)
@reason_option
@allow_option
@app_json_and_dry_run
def rollback(
    app: App,
    train: str,
    *,
    step: int | None,
    skipped: tuple[str, ...],
    lr_scale: float | None,
    is_undo: bool,
    timeout: timedelta,
    reason: str,
    allow: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Go back to an earlier checkpoint of a train.

    Holds the queued tasks of TRAIN, asks the running task to save and stop, sets every newer checkpoint aside, writes
    the settings of the next task, and releases the queue. The checkpoint is verified and preflight runs before anything
    changes. Without --to, the checkpoint is the newest verified one before the open alert about the loss.

    No checkpoint is deleted. Newer ones are kept in .rolled-back-NNNN until --undo brings them back and
    sets checkpoints saved meanwhile aside in .undone-NNNN. After an interruption, the same command continues.

    A foreign trainer needs [rollback] in TRAIN.toml for --skip-samples and --lr-scale, and for --to if it does not
    resume from the newest checkpoint.

    \b
    opsctl rollback tiny-gpt --to 4000 --dry-run
    opsctl rollback tiny-gpt --to 4000 --skip-samples 2048000-2049023
    opsctl rollback tiny-gpt --to 4000 --lr-scale 0.5 --reason "loss spike at step 4120"
    opsctl rollback tiny-gpt --undo
    """
    run = app.find(train)
    if is_undo:
        if step is not None or skipped or lr_scale is not None or allow:
            raise InputError(
                "--undo cannot be combined with --to, --skip-samples, --lr-scale or --allow",
                hint=f"opsctl rollback {run.name} --undo",
            )
        _undo(app, run, timeout, dry_run=dry_run)
        return
    options = RollbackOptions(to=step, skip_samples=skipped, lr_scale=lr_scale, allow=allow)

    def announce(plan: RollbackPlan) -> None:
        if dry_run or not wants_json():
            _print_plan(plan, app.arrays(run).check(), dry_run=dry_run)

    if dry_run:
        announce(plan_rollback(app, run, options, show=print_on_stderr))
        return
    plan, result = plan_and_roll_back(
        app, run, options, timeout, show=print_on_stderr, reason=reason, announce=announce
    )
    data = {**_to_json(plan), "set_aside": list(map(str, result.aside)), "released": list(result.released)}
    print_result(data, _join(run, describe_result(plan, result)))


def _undo(app: App, run: RunDir, timeout: timedelta, *, dry_run: bool) -> None:
    record = plan_undo(app, run)
    data: dict[str, Any] = {"train": run.name, "rollback": record.number, "step": record.step}
    if dry_run:
        is_undone = record.phase is RollbackPhase.UNDONE
        text = "is undone already" if is_undone else f"would be undone: {describe_undo(record)}"
        snapshot = app.arrays(run).check()
        lines = [f"rollback {record.number} to step {record.step} {text}", *describe_queue(run, snapshot)]
        print_result({**data, "would_change": not is_undone}, _join(run, lines))
        return
    result = undo(app, run, record, timeout, show=print_on_stderr)
    lines = [f"rollback {record.number} to step {record.step} is undone"]
    lines += [f"brought back: {list_names(result.back)}"] * bool(result.back)
    lines += [f"set aside: {list_names(result.aside)} in {record.undone}"] * bool(result.aside)
    lines.append(describe_release(run, result))
    if record.phase is RollbackPhase.UNDONE:
        lines = [f"rollback {record.number} to step {record.step} is undone already; nothing has changed"]
    paths = {"brought_back": list(map(str, result.back)), "set_aside": list(map(str, result.aside))}
    print_result({**data, **paths, "released": list(result.released)}, _join(run, lines))


def _print_plan(plan: RollbackPlan, snapshot: TrainSnapshot, *, dry_run: bool) -> None:
    run = plan.run
    now = read_files(run)
    assert now is not None  # app.find() found train.toml
    difference = "" if plan.is_done else diff(now, plan.files)
    data = {
        **_to_json(plan),
        "would_change": not plan.is_done,
        "would_set_aside": list(map(str, plan.newer)),
        "would_stop": [job.id for job in snapshot.active],
        "diff": difference,
    }
    if not plan.is_done or dry_run:  # else the result says so
        text = _join(run, describe_plan(plan, snapshot, dry_run=dry_run))
        print_result(data, *filter(None, (text, difference)))


def _to_json(plan: RollbackPlan) -> dict[str, Any]:
    record = plan.record
    return {
        "train": plan.run.name,
        "rollback": record.number,
        "step": record.step,
        "checkpoint": record.checkpoint,
        "evidence": plan.evidence,
        "next_sample": plan.next_sample,
        "skip_samples": list(record.skip_samples),
        "lr_scale": record.lr_scale,
        "already": plan.is_done,
    }


def _join(run: RunDir, lines: Sequence[str]) -> str:
    return "\n  ".join([f"{run.name}: {lines[0]}", *lines[1:]])
