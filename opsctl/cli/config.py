"""`opsctl config`: starter files, checks, JSON schemas."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from opsctl.cli.output import print_json, say
from opsctl.cli.settings_reference import markdown
from opsctl.errors import ConfigError, InputError, cannot_write
from opsctl.launch.launch_plan import render_body
from opsctl.render import templates_dir
from opsctl.settings.loader import SiteSettings, TrainSettings, load_site, load_train, read_toml
from opsctl.state.files import write_atomic
from opsctl.state.run_dir import RunDir
from opsctl.trainer.config import TrainerConfig

STARTERS = ("train.toml", "site.toml")


@click.group()
def config() -> None:
    """Starter files, checks, what every key means, and JSON schemas for editors.

    \b
    opsctl config init
    opsctl config reference site
    opsctl config check train.toml site.toml
    opsctl config schema train > train.schema.json
    """


@config.command()
@click.argument("what", type=click.Choice(["train", "site"]))
def schema(what: str) -> None:
    """Print the JSON schema of a TRAIN.toml or of site.toml.

    \b
    opsctl config schema train > train.schema.json
    """
    print_json(train_schema() if what == "train" else SiteSettings.model_json_schema())


@config.command()
@click.argument("what", type=click.Choice(["train", "site"]))
def reference(what: str) -> None:
    """Print every key of a TRAIN.toml or of site.toml, with its kind, its default and what it is, as Markdown.

    \b
    opsctl config reference site
    """
    say(markdown(train_schema() if what == "train" else SiteSettings.model_json_schema()).rstrip("\n"))


def train_schema() -> dict[str, Any]:
    """The schema of a train, with the embedded trainer's settings in their place."""
    train, trainer = TrainSettings.model_json_schema(), TrainerConfig.model_json_schema()
    definitions = {**train.pop("$defs", {}), **trainer.pop("$defs", {}), "TrainerConfig": trainer}
    train["properties"]["trainer"] = {"$ref": "#/$defs/TrainerConfig"}
    return {**train, "$defs": definitions}


@config.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where; here by default.",
)
def init(directory: Path) -> None:
    """Write a commented train.toml and site.toml to start from.

    \b
    opsctl config init --dir my-run
    """
    starters = {name: (templates_dir() / "config" / name).read_bytes() for name in STARTERS}
    # One as it was written is of a call that was cut off.
    if there := [name for name, text in starters.items() if _is_another(directory / name, text)]:
        raise InputError(
            f"{directory / there[0]} is there already", hint="move it away, or choose another place with --dir"
        )
    for name, text in starters.items():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_atomic(directory / name, text)
        except OSError as error:
            raise cannot_write(directory / name, error) from error
        say(f"wrote {directory / name}")
    say("site.toml is found as ~/.config/opsctl/site.toml, /etc/opsctl/site.toml, $OPSCTL_SITE or --site")


def _is_another(path: Path, text: bytes) -> bool:
    try:
        return path.read_bytes() != text
    except FileNotFoundError:
        return False
    except OSError:
        return True


@config.command()
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
def check(files: tuple[Path, ...]) -> None:
    """Say all that is wrong with FILES, without asking Slurm; each a TRAIN.toml or a site.toml.

    \b
    opsctl config check train.toml site.toml
    """
    wrong: list[str] = []
    for path in files:
        try:
            say(f"{path}: {_check(path)}")
        except ConfigError as error:
            wrong.append(error.message)
    if wrong:
        raise InputError("\n".join(wrong))


def _is_site(given: Collection[str]) -> bool:
    """As far as its keys tell: some are a train's as well."""
    return "root" in given or len(set(given) & set(SiteSettings.model_fields)) > len(
        set(given) & set(TrainSettings.model_fields)
    )


def _check(path: Path) -> str:
    """What the file is, if all is well with it. Raises ConfigError."""
    if _is_site(read_toml(path)):
        site = load_site(path)
        return f"fine: a site with its trains below {site.root_path}"
    train = load_train(path)
    render_body(train, RunDir(Path("/") / train.name), python="python3")
    return f"fine: train {train.name}, {train.world_size} processes"
