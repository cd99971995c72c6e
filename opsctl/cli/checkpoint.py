"""`opsctl checkpoint`: list, verify, prune, export, import and offload checkpoints.

The commands that need torch run the Python of the train, which has it.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from opsctl.app import App
from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.units import format_size, format_time
from opsctl.checkpoints import catalog, offload
from opsctl.checkpoints.save_directories import SaveDirectory
from opsctl.checkpoints.scan import FoundCheckpoint, describe_stepless, list_checkpoints_in
from opsctl.cli.checkpoint_offload import leased, offload_, ours, recheck, steps
from opsctl.cli.command_names import SuggestingGroup
from opsctl.cli.output import (
    app_and_json,
    app_json_and_dry_run,
    json_option,
    make_table,
    print_result,
    print_unless_json,
    train_argument,
    wants_json,
)
from opsctl.host.system import run_attached
from opsctl.settings.loader import read_toml
from opsctl.state.files import MAX_SETTINGS_BYTES, is_regular, read_json
from opsctl.state.run_dir import RunDir, check_trusted
from opsctl.telemetry.progress.signs import find_directories, read_log_signs
from opsctl.telemetry.progress.train_settings import read_settings
from opsctl.trainer.manifest import Checkpoint

F = TypeVar("F", bound=Callable[..., Any])
trust_option: Callable[[F], F] = click.option(
    "--trust-pickle", "trust", is_flag=True, help="Load files that could run code as you."
)
step_option: Callable[[F], F] = click.option("--step", type=int, help="Step of the checkpoint (default: the newest).")
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
    rows = []
    for checkpoint in found:
        step = "?" if checkpoint.step is None else str(checkpoint.step)
        texts = (step, checkpoint.completeness.value, format_time(checkpoint.written), str(checkpoint.path))
        rows.append((*texts, checkpoint.reason))
    lines = [f"searched: {directory.path} ({directory.reason})" for directory in directories]
    if rows and all(checkpoint.is_partial for checkpoint in found):
        lines.insert(0, ", ".join(describe_stepless(found, MAX_LISTED)))
    table = make_table(rows, ("step", "state", "written", "path", "reason"))
    data = [{**asdict(checkpoint), "written": checkpoint.written} for checkpoint in found]
    print_result(data, table if rows else "no checkpoints", *lines)


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
@app_and_json
def verify(app: App, train: str, *, step: int | None) -> int:
    """Verify the hash of every file of every checkpoint.

    Exit 1 if a checkpoint of TRAIN is damaged or cannot be read.

    \b
    opsctl checkpoint verify tiny-gpt --step 4000
    """
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
    print_result(verdicts, *([] if verdicts else [f"{train}: no checkpoints"]))
    return int(any(row["problems"] for row in verdicts))


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


@checkpoint.command()
@train_argument
@click.argument("target", type=click.Path(path_type=Path))
@step_option
@click.option("--bf16", is_flag=True, help="Write weights of fp32 in bf16, in half the space.")
@click.option("--compare", is_flag=True, help="Load the export in transformers and compare logits.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Model whose tokenizer to copy (default: the first weights).",
)
@trust_option
@app_and_json
def export(
    app: App,
    train: str,
    target: Path,
    *,
    step: int | None,
    bf16: bool,
    compare: bool,
    tokenizer: Path | None,
    trust: bool,
) -> int:
    """Export a checkpoint of TRAIN for Hugging Face transformers.

    Writes the newest checkpoint to the directory TARGET, with the tokenizer and the special tokens of the model that
    TRAIN began with ([trainer] weights). Of another user's train, only tensors are loaded: other objects in a
    checkpoint could run code as you.

    \b
    opsctl checkpoint export tiny-gpt /tmp/tiny-gpt-hf --compare
    """
    run = app.find(train)
    words = ["export", str(_newest(run, step).path), str(target.absolute()), *(["--compare"] * compare)]
    tokenizer = tokenizer or _first_weights(run)
    words += ["--tokenizer", str(tokenizer.absolute())] if tokenizer else []
    words += [*(["--trust-pickle"] * trust), *(["--bf16"] * bf16)]
    return _trainer(app, run, words)


def _first_weights(run: RunDir) -> Path | None:
    """Return the directory of the model that a train of ours began with, if it is still there."""
    if not run.is_ours or not is_regular(run.trainer_config):
        return None
    weights = read_json(run.trainer_config, MAX_SETTINGS_BYTES).get("weights")
    return Path(weights) if weights and Path(weights).is_dir() else None


@checkpoint.command("import")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--sequence", type=click.IntRange(min=1), help="Tokens of a sample (default: the longest of the model).")
@json_option
def import_model(directory: Path, *, sequence: int | None) -> int:
    """Print the settings to begin with a transformers model.

    DIRECTORY holds config.json and safetensors of a Llama, Mistral, Qwen, GPT-2 or BLOOM. Every rank reads the weights
    of its own layers at the start, on any layout. The last table is [trainer], so that its other keys can follow.

    \b
    opsctl checkpoint import models/llama-3.2-1b --sequence 4096 >> train.toml
    echo "steps = 20000" >> train.toml
    """
    words = ["import", str(directory.absolute()), *(["--sequence", str(sequence)] if sequence else [])]
    return _run_trainer(sys.executable, words)


@checkpoint.command()
@train_argument
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), required=False)
@step_option
@trust_option
@app_json_and_dry_run
def reshape(app: App, train: str, directory: Path | None, *, step: int | None, trust: bool, dry_run: bool) -> int:
    """Write a checkpoint of TRAIN for any layout and precision.

    Writes the newest checkpoint below DIRECTORY, the checkpoint directory of another train. The first task of that
    train resumes from the result, with any pipeline, tensor and data-parallel sizes. Without DIRECTORY, writes what the
    next attempt of TRAIN with other sizes would write first, while its nodes wait. Needs the space of three checkpoints
    while it runs.

    \b
    opsctl checkpoint reshape tiny-gpt trains/tiny-gpt-wide/checkpoints --dry-run
    """
    run = app.find(train)
    source, target = _newest(run, step).path, directory.absolute() if directory else None
    if dry_run:
        data = {"source": str(source), "target": target and str(target), "dry_run": True}
        print_result(data, f"{run.name}: would write {source.name} into {target or run.checkpoints}")
        return 0
    words = ["reshape", str(source), *([str(target)] if target else []), *(["--trust-pickle"] * trust)]
    return _trainer(app, run, words)


def _newest(run: RunDir, step: int | None) -> Checkpoint:
    """Return the checkpoint of `step`, or the newest. Raises InputError if there is none."""
    checkpoints = of_step(run, step)
    if not checkpoints:
        raise _no_checkpoints(run)
    return checkpoints[-1]


def _no_checkpoints(run: RunDir) -> InputError:
    return InputError(f"{run.name}: no checkpoints in {run.checkpoints}")


def _trainer(app: App, run: RunDir, words: list[str]) -> int:
    """Run `python -m opsctl.trainer.checkpoint` with the Python of the train, which has torch; return the exit code."""
    python = sys.executable
    if run.is_ours:  # a program named by another user is never run
        check_trusted([run.config], root=app.root if app.site.trust_parents else None)
        python = str(read_toml(run.config).get("python") or python)
    return _run_trainer(python, words)


def _run_trainer(python: str, words: list[str]) -> int:
    argv = [python, "-P", "-m", "opsctl.trainer.checkpoint", *words, *(["--json"] * wants_json())]
    return run_attached(argv, env=os.environ)


def of_step(run: RunDir, step: int | None) -> list[Checkpoint]:
    checkpoints = catalog.find_checkpoints(run.checkpoints)
    if step is None:
        return checkpoints
    if not checkpoints:
        raise _no_checkpoints(run)
    if chosen := [checkpoint for checkpoint in checkpoints if checkpoint.step == step]:
        return chosen
    raise InputError(f"{run.name}: no checkpoint of step {step}; existing checkpoints: {steps(checkpoints)}")


checkpoint.add_command(offload_)
