"""`opsctl checkpoint`: list, verify, prune, shrink, export, import and offload checkpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.table import Table

from opsctl.app import App
from opsctl.checkpoints import catalog, offload
from opsctl.cli.checkpoint_offload import leased, offload_, ours, recheck, steps
from opsctl.cli.foreign_checkpoints import find_foreign, print_foreign, to_rows
from opsctl.cli.output import cell, dry_run_option, json_option, print_json, print_table, print_text, train_argument
from opsctl.errors import InputError, OpsctlError
from opsctl.host.system import run_attached
from opsctl.settings.loader import read_toml
from opsctl.state.files import MAX_SETTINGS_BYTES, is_regular, read_json
from opsctl.state.run_dir import RunDir, check_trusted
from opsctl.trainer.manifest import Checkpoint
from opsctl.units import format_size

F = TypeVar("F", bound=Callable[..., Any])
trust_option: Callable[[F], F] = click.option(
    "--trust-pickle", "trust", is_flag=True, help="Load files of other users that could run code as you."
)


@click.group()
def checkpoint() -> None:
    """List, verify, prune, export and offload checkpoints.

    \b
    opsctl checkpoint list tiny-gpt
    opsctl checkpoint verify tiny-gpt
    opsctl checkpoint offload tiny-gpt --to /archive
    """


@checkpoint.command("list")
@train_argument
@json_option
@click.pass_obj
def list_(app: App, train: str, *, as_json: bool) -> int:
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
    if found and as_json:
        print_json(to_rows(found))
        return 0
    if directories and not as_json:
        print_foreign(directories, found)
        return 0
    code = int(any(row.is_unread for row in rows))
    if as_json:
        print_json([asdict(row) for row in rows])
        return code
    table = Table("step", "size", "samples", "written by", "keep", "also in", box=None, pad_edge=False)
    for row in rows:
        where = ", ".join(row.offloaded)
        last = row.problem or row.topology
        known = ("?", "?") if row.is_unread else (format_size(row.size), str(row.consumed_samples))
        table.add_row(*map(cell, (str(row.step), *known, last, row.keep_reason, where)))
    print_table(table) if rows else print_text(f"{train}: no checkpoints")
    return code


@checkpoint.command()
@train_argument
@click.option("--step", type=int, help="Verify only the checkpoint of this step.")
@json_option
@click.pass_context
def verify(context: click.Context, train: str, *, step: int | None, as_json: bool) -> None:
    """Verify the hash of every file of every checkpoint.

    Exit 1 if a checkpoint of TRAIN is damaged or cannot be read.

    \b
    opsctl checkpoint verify tiny-gpt --step 4000
    """
    app: App = context.obj
    verdicts = []
    for checkpoint in _of_step(app.find(train), step):
        try:
            problems = catalog.problems(checkpoint.path)
            verdict = "damaged" if problems else "verified"
        except (OSError, ValueError) as error:
            problems, verdict = [str(error)], "unknown"
        verdicts.append(
            {"step": checkpoint.step, "path": str(checkpoint.path), "verdict": verdict, "problems": problems}
        )
        if not as_json:
            print_text(f"{checkpoint.path.name}: {verdict}" + "".join(f"\n  {problem}" for problem in problems))
    if as_json:
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
@dry_run_option
@json_option
@click.pass_obj
def prune(app: App, train: str, *, keep_last: int, keep_every: int, dry_run: bool, as_json: bool) -> None:
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
    if as_json:
        print_json(
            {
                "removed": [checkpoint.step for checkpoint in superfluous],
                "bytes": freed,
                "dry_run": dry_run,
                "failed": failed,
            }
        )
    else:
        action = "would remove" if dry_run else "removed"
        print_text(
            f"{run.name}: {action} {steps(superfluous)}, {format_size(freed)}"
            if superfluous
            else f"{run.name}: nothing to remove"
        )
    if failed:
        raise OpsctlError("\n".join(failed), hint=recheck(run))


@checkpoint.command()
@train_argument
@trust_option
@dry_run_option
@json_option
@click.pass_context
def shrink(context: click.Context, train: str, *, trust: bool, dry_run: bool, as_json: bool) -> None:
    """Rewrite checkpoints without their unused storage.

    Runs the Python of TRAIN, which has torch.

    \b
    opsctl checkpoint shrink tiny-gpt --dry-run
    """
    run = ours(context.obj, train)
    words = ["shrink", str(run.checkpoints), *(["--dry-run"] * dry_run), *(["--trust-pickle"] * trust)]
    context.exit(_trainer(context.obj, run, words, as_json=as_json))


@checkpoint.command()
@train_argument
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Step to export (default: the newest checkpoint).")
@click.option("--compare", is_flag=True, help="Load the export in transformers and compare logits.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Model whose tokenizer to copy (default: the first weights).",
)
@trust_option
@json_option
@click.pass_context
def export(
    context: click.Context,
    train: str,
    target: Path,
    *,
    step: int | None,
    compare: bool,
    tokenizer: Path | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Export a checkpoint of TRAIN for Hugging Face transformers.

    Writes the newest checkpoint to the directory TARGET, with the tokenizer and the special tokens of the model that
    TRAIN began with ([trainer] weights). Of another user's train, only tensors are loaded: other
    objects in a checkpoint could run code as you.

    \b
    opsctl checkpoint export tiny-gpt /tmp/tiny-gpt-hf --compare
    """
    app: App = context.obj
    run = app.find(train)
    checkpoints = _of_step(run, step)
    if not checkpoints:
        raise InputError(f"{run.name}: no checkpoints in {run.checkpoints}")
    words = ["export", str(checkpoints[-1].path), str(target.absolute()), *(["--compare"] * compare)]
    tokenizer = tokenizer or _first_weights(run)
    words += ["--tokenizer", str(tokenizer.absolute())] if tokenizer else []
    words += ["--trust-pickle"] * trust
    context.exit(_trainer(app, run, words, as_json=as_json))


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
@click.pass_context
def import_model(context: click.Context, directory: Path, *, sequence: int | None, as_json: bool) -> None:
    """Print the settings to begin with a transformers model.

    DIRECTORY holds config.json and safetensors of a Llama, Mistral, Qwen, GPT-2 or BLOOM. Every rank reads the weights
    of its own layers at the start, on any layout.

    \b
    opsctl checkpoint import models/llama-3.2-1b --sequence 4096 >> train.toml
    """
    words = ["import", str(directory.absolute()), *(["--sequence", str(sequence)] if sequence else [])]
    argv = [sys.executable, "-P", "-m", "opsctl.trainer.checkpoint", *words, *(["--json"] * as_json)]
    context.exit(run_attached(argv, env=os.environ))


def _trainer(app: App, run: RunDir, words: list[str], *, as_json: bool) -> int:
    """Run `python -m opsctl.trainer.checkpoint` with the Python of the train, which has torch; return the exit code."""
    python = sys.executable
    if run.is_ours:  # a program named by another user is never run
        check_trusted([run.config], root=app.root if app.site.trust_parents else None)
        python = str(read_toml(run.config).get("python") or python)
    argv = [python, "-P", "-m", "opsctl.trainer.checkpoint", *words, *(["--json"] * as_json)]
    return run_attached(argv, env=os.environ)


def _of_step(run: RunDir, step: int | None) -> list[Checkpoint]:
    checkpoints = catalog.find_checkpoints(run.checkpoints)
    if step is None:
        return checkpoints
    if chosen := [checkpoint for checkpoint in checkpoints if checkpoint.step == step]:
        return chosen
    raise InputError(f"{run.name}: no checkpoint of step {step}; existing checkpoints: {steps(checkpoints)}")


checkpoint.add_command(offload_)
