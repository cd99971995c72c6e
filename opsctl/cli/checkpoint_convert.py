"""`opsctl checkpoint export`, `compare`, `import` and `reshape`: the commands that need torch.

They run the Python of the train, which has torch.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from opsctl.app import App
from opsctl.base.errors import InputError
from opsctl.checkpoints import catalog
from opsctl.cli.checkpoint_offload import steps
from opsctl.cli.output import app_and_json, app_json_and_dry_run, json_option, print_result, train_argument, wants_json
from opsctl.host.system import run_attached
from opsctl.settings.loader import read_toml
from opsctl.state.files import MAX_SETTINGS_BYTES, is_regular, read_json
from opsctl.state.run_dir import RunDir, check_trusted
from opsctl.trainer.manifest import Checkpoint

F = TypeVar("F", bound=Callable[..., Any])
trust_option: Callable[[F], F] = click.option(
    "--trust-pickle", "trust", is_flag=True, help="Load files that could run code as you."
)
step_option: Callable[[F], F] = click.option("--step", type=int, help="Step of the checkpoint (default: the newest).")


@click.command()
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


@click.command("import")
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


@click.command()
@train_argument
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@step_option
@trust_option
@app_and_json
def compare(app: App, train: str, directory: Path, *, step: int | None, trust: bool) -> int:
    """Compare the logits of a checkpoint of TRAIN and an export.

    Loads DIRECTORY in transformers, and computes the logits of random tokens in fp32 on both sides. Exit 1 if they
    differ.

    \b
    opsctl checkpoint compare tiny-gpt /tmp/tiny-gpt-hf
    """
    run = app.find(train)
    words = ["compare", str(_newest(run, step).path), str(directory.absolute()), *(["--trust-pickle"] * trust)]
    return _trainer(app, run, words)


@click.command()
@train_argument
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@step_option
@trust_option
@app_json_and_dry_run
def reshape(app: App, train: str, directory: Path, *, step: int | None, trust: bool, dry_run: bool) -> int:
    """Write a checkpoint of TRAIN for any layout and precision.

    Writes the newest checkpoint below DIRECTORY, the checkpoint directory of another train. The first task of that
    train resumes from the result, with any pipeline, tensor and data-parallel sizes. Needs the space of three
    checkpoints while it runs.

    \b
    opsctl checkpoint reshape tiny-gpt trains/tiny-gpt-wide/checkpoints --dry-run
    """
    run = app.find(train)
    source, target = _newest(run, step).path, directory.absolute()
    if dry_run:
        data = {"source": str(source), "target": str(target), "dry_run": True}
        print_result(data, f"{run.name}: would write {source.name} into {target}")
        return 0
    return _trainer(app, run, ["reshape", str(source), str(target), *(["--trust-pickle"] * trust)])


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
