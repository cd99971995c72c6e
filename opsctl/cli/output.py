"""How verbs print: tables for people, JSON for programs, colours only on a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])

json_option: Callable[[F], F] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
dry_run_option: Callable[[F], F] = click.option("--dry-run", is_flag=True, help="Say what would be done; do nothing.")
train_argument: Callable[[F], F] = click.argument("train")


def print_json(data: object) -> None:
    click.echo(json.dumps(data, indent=2, default=str, ensure_ascii=False))


def finite(data: Any) -> Any:
    """The same without nan and infinity, which JSON does not know: null."""
    if isinstance(data, dict):
        return {key: finite(each) for key, each in data.items()}
    if isinstance(data, list | tuple):
        return [finite(each) for each in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def say(text: str) -> None:
    click.echo(text)


def console() -> Console:
    """Where tables go. Elsewhere than on a terminal a line is as long as it needs to be, for grep's sake."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=1000)
