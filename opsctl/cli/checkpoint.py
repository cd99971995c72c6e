"""`opsctl checkpoint`: list, verify, prune, export, import and offload checkpoints."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import click

from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.base.units import format_size, format_time
from opsctl.checkpoints import catalog, offload
from opsctl.checkpoints.save_directories import SaveDirectory
from opsctl.checkpoints.scan import FoundCheckpoint, describe_stepless, list_checkpoints_in
from opsctl.cli.checkpoint_convert import compare, export, import_model, of_step, reshape
from opsctl.cli.checkpoint_offload import leased, offload_, ours, recheck, steps
from opsctl.cli.command_names import SuggestingGroup
from opsctl.cli.output import (
    app_and_json,
    app_json_and_dry_run,
    json_option,
    make_table,
    print_json,
    print_result,
    print_table,
    print_text,
    print_unless_json,
    train_argument,
    wants_json,
)
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.signs import find_directories, read_log_signs
from opsctl.telemetry.progress.train_settings import read_settings

MAX_LISTED = 256
"""Checkpoints of one directory, the newest."""


def find_foreign(run: RunDir) -> tuple[list[SaveDirectory], list[FoundCheckpoint]]:
    """Return the directories that are known to hold checkpoints, and the checkpoints in them, by their steps."""
    settings = read_settings(run)
    if settings is None or run.trainer_config.exists():
        return [], []
    logged = read_log_signs(run.main_log, 0, None).saved_paths
    directories = find_directories(run, settings, logged=logged)
    found = list_checkpoints_in([directory.path for directory in directories], MAX_LISTED)
    found.sort(key=lambda checkpoint: (checkpoint.step is not None, checkpoint.step or 0, checkpoint.changed_ns))
    return directories, found


def print_foreign(directories: Sequence[SaveDirectory], found: Sequence[FoundCheckpoint]) -> None:
    """Print the checkpoints, and where opsctl looked for them."""
    if wants_json():
        print_json([{**asdict(checkpoint), "written": _written(checkpoint)} for checkpoint in found])
        return
    rows = []
    for checkpoint in found:
        step = "?" if checkpoint.step is None else str(checkpoint.step)
        texts = (step, checkpoint.completeness.value, format_time(_written(checkpoint)), str(checkpoint.path))
        rows.append((*texts, checkpoint.reason))
    if rows:
        print_table(make_table(rows, ("step", "state", "written", "path", "reason")))
        if all(checkpoint.is_partial for checkpoint in found):
            print_text(", ".join(describe_stepless(found, MAX_LISTED)))
    else:
        print_text("no checkpoints")
    for directory in directories:
        print_text(f"searched: {directory.path} ({directory.reason})")


def _written(checkpoint: FoundCheckpoint) -> datetime:
    return datetime.fromtimestamp(checkpoint.changed_ns / 1e9, UTC)


@click.group(cls=SuggestingGroup)
def checkpoint() -> None:
    """List, verify, prune, export and offload checkpoints.

    \b
    opsctl checkpoint list tiny-gpt
    opsctl checkpoint verify tiny-gpt
    opsctl checkpoint offload tiny-gpt --to /archive
    """


@checkpoint.command("list")
@train_argument
@app_and_json
def list_(app: App, train: str) -> int:
    """List the checkpoints of TRAIN.

    Shows step, size, samples, layout and copies, and reads only the manifests. Exit 1 if a manifest cannot be read.

    For a foreign trainer, shows every checkpoint in the directories that TRAIN.toml, the command or the log names, and
    whether it is complete, partial or unknown.

    \b
    opsctl checkpoint list tiny-gpt --json
    """
    run = app.find(train)
    rows = catalog.list_checkpoints(run.checkpoints)
    directories, found = find_foreign(run) if not rows else ([], [])
    if directories:
        print_foreign(directories, found)
        return 0
    cells = []
    for row in rows:
        known = ("?", "?") if row.is_unread else (format_size(row.size), str(row.consumed_samples))
        cells.append((str(row.step), *known, row.problem or row.topology, row.keep_reason, ", ".join(row.offloaded)))
    table = make_table(cells, ("step", "size", "samples", "written by", "keep", "also in"))
    print_result(rows, table if rows else f"{train}: no checkpoints")
    return int(any(row.is_unread for row in rows))


@checkpoint.command()
@train_argument
@click.option("--step", type=int, help="Verify only the checkpoint of this step.")
@json_option
@click.pass_context
def verify(context: click.Context, train: str, *, step: int | None) -> None:
    """Verify the hash of every file of every checkpoint.

    Exit 1 if a checkpoint of TRAIN is damaged or cannot be read.

    \b
    opsctl checkpoint verify tiny-gpt --step 4000
    """
    app: App = context.obj
    verdicts = []
    for checkpoint in of_step(app.find(train), step):
        try:
            problems = catalog.problems(checkpoint.path)
            verdict = "damaged" if problems else "verified"
        except (OSError, ValueError) as error:
            problems, verdict = [str(error)], "unknown"
        verdicts.append(
            {"step": checkpoint.step, "path": str(checkpoint.path), "verdict": verdict, "problems": problems}
        )
        print_unless_json("\n  ".join([f"{checkpoint.path.name}: {verdict}", *problems]))
    if wants_json():
        print_json(verdicts)
    elif not verdicts:
        print_text(f"{train}: no checkpoints")
    context.exit(int(any(row["problems"] for row in verdicts)))


@checkpoint.command()
@train_argument
@click.option("--keep-last", type=click.IntRange(min=2), required=True, help="Number of newest checkpoints to keep.")
@click.option(
    "--keep-every", type=click.IntRange(min=0), default=0, help="Keep multiples of this step as well (0: none)."
)
@app_json_and_dry_run
def prune(app: App, train: str, *, keep_last: int, keep_every: int, dry_run: bool) -> None:
    """Remove old checkpoints of TRAIN.

    Always keeps the newest two checkpoints that verify, and checkpoints marked to be kept. A damaged or unreadable
    checkpoint does not stop the command: it is listed, and the exit code is 1.

    \b
    opsctl checkpoint prune tiny-gpt --keep-last 5 --keep-every 10000 --dry-run
    """
    run = ours(app, train)
    with leased(run, app):
        superfluous, failed = catalog.find_superfluous(run.checkpoints, keep_last=keep_last, keep_every=keep_every)
        sizes = {checkpoint: offload.size(checkpoint) for checkpoint in superfluous}
        if not dry_run:
            failed += catalog.sweep(run.checkpoints)
            superfluous, not_removed = catalog.remove(superfluous)
            failed += not_removed
    freed = sum(sizes[checkpoint] for checkpoint in superfluous)
    text = f"{'would remove' if dry_run else 'removed'} {steps(superfluous)}, {format_size(freed)}"
    removed = [checkpoint.step for checkpoint in superfluous]
    data = {"removed": removed, "bytes": freed, "dry_run": dry_run, "failed": failed}
    print_result(data, f"{run.name}: {text if superfluous else 'nothing to remove'}")
    if failed:
        raise OpsctlError("\n".join(failed), hint=recheck(run))


for command in (export, import_model, compare, reshape, offload_):
    checkpoint.add_command(command)
