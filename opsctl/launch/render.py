"""Render text for Slurm and bash: directives, commands whose words arrive unchanged, templates without gaps; pages."""

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from opsctl.base.errors import ConfigError
from opsctl.base.model import JobSpec
from opsctl.base.tables import read_package_table

PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}", re.ASCII)


def read_job_variables() -> Mapping[str, Mapping[str, Any]]:
    """Return job_variables.toml: the variables of placeholders, and those that podman passes into a container."""
    return read_package_table("launch/job_variables.toml")


def templates_dir() -> Path:
    """Return the directory of the templates: in a checkout, a link to the repository's `templates/`."""
    return Path(__file__).parents[1] / "templates"


@cache
def _environment() -> Environment:
    environment = Environment(  # shell, not HTML  # nosec B701
        loader=FileSystemLoader(templates_dir()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 (shell, not HTML: the `sh` filter quotes)
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    return environment


def render(template: str, **values: object) -> str:
    """Render a template. A name without a value raises UndefinedError; no name becomes an empty text."""
    return _environment().get_template(template).render(values)


@cache
def _page_environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(templates_dir()),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_page(template: str, **values: object) -> str:
    """Render an HTML page. Texts are escaped; a name without a value raises UndefinedError."""
    return _page_environment().get_template(template).render(values)


def directives(spec: JobSpec) -> list[str]:
    """Return the `#SBATCH` options. `--output` and `--comment` are added at submission instead."""
    options: dict[str, object] = {
        "--job-name": spec.name,
        "--array": f"1-{spec.tasks}%1",
        "--nodes": spec.nodes + spec.spare_nodes,
        "--ntasks-per-node": spec.processes_per_node,
        "--cpus-per-task": spec.cpus_per_process,
        "--time": spec.time_limit,
        "--gres": f"gpu:{spec.gpus_per_node}" if spec.gpus_per_node else "",
        "--mem": spec.memory_per_node,
        "--partition": spec.partition,
        "--account": spec.account,
        "--qos": spec.qos,
        "--reservation": spec.reservation,
        "--constraint": spec.constraint,
        "--exclude": spec.exclude,
        "--nice": "" if spec.nice is None else spec.nice,
        "--dependency": f"afterany:{spec.after}" if spec.after else "",
        "--signal": f"B:USR1@{spec.signal_seconds}" if spec.signal_seconds else "",
    }
    flags = ["--no-requeue"]
    flags += ["--no-kill"] if spec.survives_nodes else []
    flags += ["--exclusive"] if spec.exclusive else []
    return [f"{key}={value}" for key, value in options.items() if value != ""] + flags + list(spec.extra)


def command_line(words: Sequence[str], static: Mapping[str, str] | None = None) -> str:
    """Quote the words for bash, so that the program gets them unchanged.

    The placeholder `{{ name }}` becomes the value in `static`, or the body's variable in job_variables.toml. Raises
    ConfigError for any other name.
    """
    static, variables = static or {}, read_job_variables()["placeholders"]
    names: set[str] = set()
    for word in words:
        names.update(PLACEHOLDER.findall(word))
    unknown = sorted(names - set(static) - set(variables))
    if unknown:
        known = ", ".join(sorted({*static, *variables}))
        raise ConfigError("command", [f"{{{{ {name} }}}}: unknown; known: {known}" for name in unknown])
    return " ".join(_quote_word(word, static, variables) for word in words)


def _quote_word(word: str, static: Mapping[str, str], variables: Mapping[str, str]) -> str:
    parts = [""]
    """In turn: literal text, name of a variable, literal text, and so on."""
    for index, piece in enumerate(PLACEHOLDER.split(word)):
        if index % 2 and piece not in static:
            parts += [variables[piece], ""]
        else:
            parts[-1] += static[piece] if index % 2 else piece
    quoted = ""
    for index, part in enumerate(parts):
        if part:
            quoted += f'"${{{part}:-}}"' if index % 2 else shlex.quote(part)
    return quoted or "''"
