"""`opsctl checkpoint shrink`, `export`, `compare`, `import`, `reshape`, `bf16`: the commands that need torch.

They run the Python of the train, which has torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from opsctl.app import App
from opsctl.base.errors import InputError
from opsctl.checkpoints import catalog
from opsctl.cli.checkpoint_offload import ours, steps
from opsctl.cli.output import dry_run_option, json_option, print_json, print_text, train_argument
from opsctl.host.system import run_attached
from opsctl.settings.loader import read_toml
from opsctl.state.files import MAX_SETTINGS_BYTES, is_regular, read_json
from opsctl.state.run_dir import RunDir, check_trusted
from opsctl.trainer.manifest import Checkpoint

F = TypeVar("F", bound=Callable[..., Any])
trust_option: Callable[[F], F] = click.option(
    "--trust-pickle", "trust", is_flag=True, help="Load files of other users that could run code as you."
)
step_option: Callable[[F], F] = click.option("--step", type=int, help="Step of the checkpoint (default: the newest).")


@click.command()
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


@click.command()
@train_argument
@click.argument("target", type=click.Path(path_type=Path))
@step_option
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
    TRAIN began with ([trainer] weights). Of another user's train, only tensors are loaded: other objects in a
    checkpoint could run code as you.

    \b
    opsctl checkpoint export tiny-gpt /tmp/tiny-gpt-hf --compare
    """
    app: App = context.obj
    run = app.find(train)
    words = ["export", str(_newest(run, step).path), str(target.absolute()), *(["--compare"] * compare)]
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


@click.command("import")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--sequence", type=click.IntRange(min=1), help="Tokens of a sample (default: the longest of the model).")
@json_option
@click.pass_context
def import_model(context: click.Context, directory: Path, *, sequence: int | None, as_json: bool) -> None:
    """Print the settings to begin with a transformers model.

    DIRECTORY holds config.json and safetensors of a Llama, Mistral, Qwen, GPT-2 or BLOOM. Every rank reads the weights
    of its own layers at the start, on any layout. The last table is [trainer], so that its other keys can follow.

    \b
    opsctl checkpoint import models/llama-3.2-1b --sequence 4096 >> train.toml
    echo "steps = 20000" >> train.toml
    """
    words = ["import", str(directory.absolute()), *(["--sequence", str(sequence)] if sequence else [])]
    argv = [sys.executable, "-P", "-m", "opsctl.trainer.checkpoint", *words, *(["--json"] * as_json)]
    context.exit(run_attached(argv, env=os.environ))


@click.command()
@train_argument
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@step_option
@trust_option
@json_option
@click.pass_context
def compare(
    context: click.Context, train: str, directory: Path, *, step: int | None, trust: bool, as_json: bool
) -> None:
    """Compare the logits of a checkpoint of TRAIN and an export.

    Loads DIRECTORY in transformers, and computes the logits of random tokens in fp32 on both sides. Exit 1 if they
    differ.

    \b
    opsctl checkpoint compare tiny-gpt /tmp/tiny-gpt-hf
    """
    app: App = context.obj
    run = app.find(train)
    words = ["compare", str(_newest(run, step).path), str(directory.absolute()), *(["--trust-pickle"] * trust)]
    context.exit(_trainer(app, run, words, as_json=as_json))


def takes_target(function: F) -> F:
    """Add the arguments and options of a command that writes a checkpoint into another directory."""
    directory = click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
    call: Any = click.pass_context(function)
    for option in (json_option, dry_run_option, trust_option, step_option, directory, train_argument):
        call = option(call)
    return call  # type: ignore[no-any-return]  # click's options wrap a function without its type


@click.command()
@takes_target
def reshape(context: click.Context, /, **words: Any) -> None:
    """Write a checkpoint of TRAIN for any layout and precision.

    Writes the newest checkpoint below DIRECTORY, the checkpoint directory of another train. The first task of that
    train resumes from the result, with any pipeline, tensor and data-parallel sizes. Needs the space of three
    checkpoints while it runs.

    \b
    opsctl checkpoint reshape tiny-gpt trains/tiny-gpt-wide/checkpoints --dry-run
    """
    _convert(context, "reshape", **words)


@click.command()
@takes_target
def bf16(context: click.Context, /, **words: Any) -> None:
    """Write only the weights of a checkpoint of TRAIN, in bf16.

    Writes the newest checkpoint to the new DIRECTORY. No train can resume from the result; `export` reads it.

    \b
    opsctl checkpoint bf16 tiny-gpt /archive/tiny-gpt-bf16 --step 4000
    """
    _convert(context, "bf16", **words)


def _convert(
    context: click.Context,
    command: str,
    *,
    train: str,
    directory: Path,
    step: int | None,
    trust: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    app: App = context.obj
    run = app.find(train)
    source, target = _newest(run, step).path, directory.absolute()
    if dry_run and as_json:
        print_json({"source": str(source), "target": str(target), "dry_run": True})
    elif dry_run:
        print_text(f"{run.name}: would write {source.name} into {target}")
    else:
        words = [command, str(source), str(target), *(["--trust-pickle"] * trust)]
        context.exit(_trainer(app, run, words, as_json=as_json))


def _newest(run: RunDir, step: int | None) -> Checkpoint:
    """Return the checkpoint of `step`, or the newest. Raises InputError if there is none."""
    checkpoints = of_step(run, step)
    if not checkpoints:
        raise _no_checkpoints(run)
    return checkpoints[-1]


def _no_checkpoints(run: RunDir) -> InputError:
    return InputError(f"{run.name}: no checkpoints in {run.checkpoints}")


def _trainer(app: App, run: RunDir, words: list[str], *, as_json: bool) -> int:
    """Run `python -m opsctl.trainer.checkpoint` with the Python of the train, which has torch; return the exit code."""
    python = sys.executable
    if run.is_ours:  # a program named by another user is never run
        check_trusted([run.config], root=app.root if app.site.trust_parents else None)
        python = str(read_toml(run.config).get("python") or python)
    argv = [python, "-P", "-m", "opsctl.trainer.checkpoint", *words, *(["--json"] * as_json)]
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
