"""`opsctl config`: starter files, checks, the reference of all keys, JSON schemas."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from opsctl.base.errors import ConfigError, InputError
from opsctl.cli.init import init
from opsctl.cli.output import print_json, print_text
from opsctl.cli.settings_reference import markdown
from opsctl.launch.launch_plan import render_body
from opsctl.settings.loader import SiteSettings, TrainSettings, load_site, load_train, read_toml
from opsctl.state.run_dir import RunDir
from opsctl.trainer.config import TrainerConfig


@click.group()
def config() -> None:
    """Check settings files and explain every key.

    \b
    opsctl config init
    opsctl config reference site
    opsctl config check train.toml site.toml
    opsctl config schema train > train.schema.json
    """


@config.command()
@click.argument("kind", type=click.Choice(["train", "site"]))
def schema(kind: str) -> None:
    """Print the JSON schema of train.toml or site.toml.

    \b
    opsctl config schema train > train.schema.json
    """
    print_json(_schema(kind))


@config.command()
@click.argument("kind", type=click.Choice(["train", "site"]))
def reference(kind: str) -> None:
    """Print every key of train.toml or site.toml.

    The output is Markdown: type, default and description of each key.

    \b
    opsctl config reference site
    """
    print_text(markdown(_schema(kind)).rstrip("\n"))


def _schema(kind: str) -> dict[str, Any]:
    return train_schema() if kind == "train" else SiteSettings.model_json_schema()


def train_schema() -> dict[str, Any]:
    """Return the JSON schema of train.toml, including the settings of the embedded trainer."""
    train, trainer = TrainSettings.model_json_schema(), TrainerConfig.model_json_schema()
    definitions = {**train.pop("$defs", {}), **trainer.pop("$defs", {}), "TrainerConfig": trainer}
    train["properties"]["trainer"] = {"$ref": "#/$defs/TrainerConfig"}
    return {**train, "$defs": definitions}


@config.command()
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
def check(files: tuple[Path, ...]) -> None:
    """Check settings FILES and list every problem.

    Each file is a train.toml or a site.toml. Slurm is not asked.

    \b
    opsctl config check train.toml site.toml
    """
    problems: list[str] = []
    for path in files:
        try:
            print_text(f"{path}: {_check(path)}")
        except ConfigError as error:
            problems.append(error.message)
    if problems:
        raise InputError("\n".join(problems))


def _is_site(keys: Collection[str]) -> bool:
    """Guess the kind of a settings file: a site has a `root`, or more keys of a site than of a train."""
    site_keys = set(keys) & set(SiteSettings.model_fields)
    train_keys = set(keys) & set(TrainSettings.model_fields)
    return "root" in keys or len(site_keys) > len(train_keys)


def _check(path: Path) -> str:
    """Return a description of a valid settings file. Raises ConfigError with every problem."""
    if _is_site(read_toml(path)):
        site = load_site(path)
        return f"valid: a site with its trains in {site.root_path}"
    train = load_train(path)
    render_body(train, RunDir(Path("/") / train.name), python="python3")
    return f"valid: train {train.name}, {train.world_size} processes"


config.add_command(init)
