"""`opsctl config`: checks of settings files, the reference of all keys, JSON schemas."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import click

from opsctl.base.errors import ConfigError, InputError
from opsctl.cli.command_names import SuggestingGroup
from opsctl.cli.output import print_json, print_text
from opsctl.launch.launch_plan import render_body
from opsctl.settings.loader import SiteSettings, TrainSettings, load_site, load_train, read_toml
from opsctl.state.run_dir import RunDir
from opsctl.trainer.config import TrainerConfig

Schema = dict[str, Any]
KINDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def markdown(schema: Schema) -> str:
    """Return a heading and a Markdown table for each table of the file, the top level first."""
    return "\n\n".join(_tables(schema, schema, "")).strip() + "\n"


def _tables(whole: Schema, table: Schema, name: str, brackets: str = "[]") -> Iterator[str]:
    """Yield the Markdown of a table and of the tables inside, in the order of their declaration."""
    inner: list[tuple[Schema, str, str]] = []
    rows: list[str] = []
    for key, field in table.get("properties", {}).items():
        path = f"{name}.{key}" if name else key
        tables = list(_inside(whole, field, path))
        inner += tables
        if not tables:
            default = "**required**" if key in table.get("required", ()) else _default(field)
            rows.append(f"| `{key}` | {_kind(field)} | {default} | {_cell(field.get('description', ''))} |")
    text = " ".join(str(table.get("description", "")).split())
    heading = [f"### `{brackets[0] * (len(brackets) // 2)}{name}{brackets[-1] * (len(brackets) // 2)}`"] if name else []
    head = ["| key | | default | what it is |\n|---|---|---|---|"] if rows else []
    yield "\n\n".join([*heading, *([text] if text else []), *("\n".join([*head, *rows]) for _ in head)])
    for schema, path, around in inner:
        yield from _tables(whole, schema, path, around)


def _inside(whole: Schema, field: Schema, path: str) -> Iterator[tuple[Schema, str, str]]:
    """Yield the tables of a key: a single table, a list of tables, or tables with names chosen by the user."""
    if "$ref" in field:
        table = whole["$defs"][field["$ref"].rpartition("/")[2]]
        if table.get("type") == "object":
            yield table, path, "[]"
    for variant in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        yield from _inside(whole, variant, path)
    if field.get("type") == "array":
        yield from ((table, name, "[[]]") for table, name, _ in _inside(whole, field["items"], path))
    if isinstance(more := field.get("additionalProperties"), dict):
        yield from _inside(whole, more, f"{path}.NAME")


EXAMPLES = {"size": 'size such as `"64M"`', "duration": 'duration such as `"2h"`'}


def _kind(field: Schema) -> str:
    """Return the type of a key: `whole number ≥ 1`, `"a" or "b"`, `list of text`."""
    if options := [variant for variant in field.get("anyOf", ()) if variant.get("type") != "null"]:
        return " or ".join(dict.fromkeys(map(_kind, options)))
    if words := field.get("enum") or ([field["const"]] if "const" in field else []):
        return " or ".join(f"`{json.dumps(word)}`" for word in words)
    if example := EXAMPLES.get(field.get("format", "")):
        return example
    kind = str(field.get("type", ""))
    if kind == "array":
        return f"list of {_kind(field.get('items', {}))}"
    if kind == "object":
        return f"table of {_kind(field.get('additionalProperties', {}))}"
    bounds = [f"{sign} {field[word]:g}" for word, sign in BOUNDS.items() if word in field]
    return " ".join([KINDS.get(kind, kind), *([", ".join(bounds)] if bounds else [])])


def _default(field: Schema) -> str:
    default = field.get("default")
    return "unset" if default is None else f"`{_cell(json.dumps(default, ensure_ascii=False))}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


@click.group(cls=SuggestingGroup)
def config() -> None:
    """Check settings files and explain every key.

    \b
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
