"""`opsctl init`: a train.toml for the user's trainer and cluster, and a site.toml."""

import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from opsctl.app import App
from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.model import Partition
from opsctl.base.tables import PACKAGE, read_package_table
from opsctl.base.units import parse_slurm_minutes
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.output import print_text, write_file
from opsctl.launch.launch_plan import render_body
from opsctl.preflight.checks.slurm import as_slurm
from opsctl.settings.field_types import NAME
from opsctl.settings.loader import TrainSettings, find_site, parse
from opsctl.settings.write_toml import dump_toml, set_keys
from opsctl.slurm.commands import Slurm
from opsctl.state.files import MAX_SETTINGS_BYTES, read_bounded
from opsctl.state.run_dir import RunDir

FILES: Mapping[str, str] = read_package_table("cli/init.toml")["files"]
EXAMPLES = ("counting",)
TRAINERS = tuple(name for name in FILES if name not in ("command", *EXAMPLES))
LAUNCHER = re.compile(r"(?:\S*/)?torchrun|torch\.distributed\.(?:run|launch)")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
SHELL_SIGNS = re.compile(r"[|&;<>`]|\$(?!\{\{)")
"""Signs of a text that only a shell understands; a command is started without one."""


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write both files into this directory.",
)
@click.option("--command", help="How your trainer starts, as one text in quotes.")
@click.option("--trainer", type=click.Choice(TRAINERS), help="Begin with the recipe of this trainer.")
@dependent_option(
    "--example", not_with=("--command", "--trainer"), type=click.Choice(EXAMPLES), help="Write a train to try."
)
@click.pass_obj
def init(app: App, directory: Path | None, command: str | None, trainer: str | None, example: str | None) -> None:
    """Write a train.toml for your trainer, and a site.toml.

    Asks on a terminal how your trainer starts, unless an option says so. The partition, the nodes, the GPUs of a node
    and the time limit are those of the Slurm that answers here. A launcher such as torchrun is left out of the command,
    because opsctl starts one process per GPU, with RANK and the other variables set.

    Writes train.toml into the working directory, and site.toml where opsctl reads it: the file of --site or
    $OPSCTL_SITE, else ~/.config/opsctl/site.toml. An existing site.toml is left as it is. With --dir, both files go
    into that directory. Files with other contents are never overwritten.

    \b
    opsctl init
    opsctl init --command "torchrun --nproc-per-node 8 train.py --output-dir out"
    opsctl init --trainer lightning
    opsctl init --example counting --dir my-run
    """
    if (command, trainer, example) == (None, None, None) and sys.stdin.isatty() and sys.stdout.isatty():
        command, trainer, example = _ask()
    kind = trainer or example or ("embedded" if command is None else "command")
    if directory:
        train, site = directory / "train.toml", directory / "site.toml"
    else:
        config_dir = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        root = click.get_current_context().find_root()
        site = root.params.get("site") or find_site() or config_dir / "opsctl" / "site.toml"
        train = Path("train.toml")
    text = (PACKAGE / FILES[kind]).read_text(encoding="utf-8")
    if kind != "embedded":
        text = _fit_cluster(app, text if example else _fill(text, command))
    settings = parse(TrainSettings, tomllib.loads(text), str(train))
    render_body(settings, RunDir(Path("/") / settings.name), python="python3")
    starters = {train: text.encode()}
    keeps_site = not directory and site.exists()
    if not keeps_site:
        starters[site] = (PACKAGE / "templates/config/site.toml").read_bytes()
    _write(starters)
    if keeps_site:
        print_text(f"{site} already exists and is left as it is")
    _print_next_steps(train, site, is_read=not directory)


def _ask() -> tuple[str | None, str | None, str | None]:
    """Return the command, the trainer or the example that the user names; none for the embedded trainer."""
    print_text(f"How does your trainer start? Type its command, the name of a trainer ({', '.join(TRAINERS)}),")
    answer = click.prompt("counting for an example, or nothing", default="", show_default=False).strip()
    if answer in TRAINERS:
        return None, answer, None
    return (None, None, answer) if answer in EXAMPLES else (answer or None, None, None)


def _fill(text: str, command: str | None) -> str:
    """Return the file with the user's command, directory and Python environment."""
    fields, here, python_environment = tomllib.loads(text), Path.cwd(), os.environ.get("VIRTUAL_ENV")
    activate = [f"source {shlex.quote(python_environment)}/bin/activate"] if python_environment else None
    text = set_keys(text, "setup", {"directory": str(here), "lines": activate})
    if command is None:
        return text
    words, environment, slurm = read_command(command)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", here.name).strip("._-")[:64]
    text = set_keys(text, "", {"command": words, "name": name if NAME.fullmatch(name) else fields["name"]})
    text = set_keys(text, "environment", {**fields.get("environment", {}), **environment})
    return set_keys(text, "slurm", slurm)


def read_command(command: str) -> tuple[list[str], dict[str, str], dict[str, int]]:
    """Return the words that start one rank, the variables before them, and what a launcher says of [slurm].

    Raises InputError for quotes that do not match.
    """
    command = re.sub(r"\{\{\s*(\w+)\s*\}\}", r"{{\1}}", command)  # a placeholder is one word
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--command: {error}", hint="quote the command as a shell does") from error
    if SHELL_SIGNS.search(command):
        return ["bash", "-c", command], {}, {"processes_per_node": 1}
    environment = {}
    while words and (match := ASSIGNMENT.fullmatch(words[0])):
        environment[match[1]] = match[2]
        del words[0]
    launcher = next((place for place, word in enumerate(words) if LAUNCHER.fullmatch(word)), len(words))
    options = words[launcher + 1 :]
    start = next((place for place, word in enumerate(options) if word == "-m" or word.endswith(".py")), None)
    slurm = {} if words and Path(words[0]).name.startswith("python") else {"processes_per_node": 1}
    if start is not None:
        before, stated = words[:launcher], re.search(r"--nnodes[= ](\d+)(?!\S)", " ".join(options[:start]))
        if "-m" in before:
            before = before[:1]
        else:  # such as `uv run`
            before = [*(before if "srun" not in before else []), "python" if shutil.which("python") else "python3"]
        words, slurm = [*before, "-u", *options[start:]], {"nodes": int(stated[1])} if stated else {}
    return [*map(locate, words[:1]), *words[1:]], environment, slurm


def locate(program: str) -> str:
    """Return the path of a program that only this shell finds: jobs have another PATH, unless they activate one."""
    path = shutil.which(program) or program
    return program if os.environ.get("VIRTUAL_ENV") or path.startswith(("/usr/", "/bin/")) else path


def _fit_cluster(app: App, text: str) -> str:
    """Return the file with the partition, nodes, GPUs and time limit of the Slurm that answers here."""
    table: dict[str, Any] = tomllib.loads(text)["slurm"]
    has_gpus, ranks = bool(table.get("gpus_per_node")), table["processes_per_node"]
    try:
        partition, cpus, gpus = choose_partition(app.slurm, needs_gpus=has_gpus)
    except OpsctlError as error:
        print_text(f"[slurm] is not fitted to a cluster: {error.message}")
        return text
    limit, most = partition.max_minutes, min(partition.nodes, partition.max_nodes or partition.nodes)
    fitted: dict[str, Any] = {"partition": partition.name, "nodes": min(table["nodes"], most)}
    if limit is not None and (parse_slurm_minutes(table["time_limit"]) or 0) > limit:
        fitted["time_limit"] = as_slurm(limit)
    if has_gpus:
        ranks = ranks if ranks == 1 else max(1, gpus)
        fitted |= {"gpus_per_node": gpus, "processes_per_node": ranks, "cpus_per_process": max(1, cpus // ranks)}
    print_text(f"[slurm] is fitted to partition {partition.name}: {', '.join(dump_toml(fitted).splitlines())}")
    return set_keys(text, "slurm", fitted)


def choose_partition(slurm: Slurm, *, needs_gpus: bool) -> tuple[Partition, int, int]:
    """Return a partition with the CPUs and GPUs that all its nodes have: the default, or one with GPUs if needed."""
    shapes = slurm.shapes()
    choices: list[tuple[Partition, int, int]] = []
    for partition in slurm.partitions():
        members = [shapes[node] for node in slurm.members(partition.name) if node in shapes]
        if partition.is_up and members:
            choices.append((partition, min(cpus for cpus, _ in members), min(gpus for _, gpus in members)))
    if not choices:
        raise OpsctlError("no partition is up")
    return max(choices, key=lambda choice: (needs_gpus and choice[2] > 0, choice[0].is_default, choice[0].nodes))


def _write(starters: Mapping[Path, bytes]) -> None:
    for path, starter in starters.items():
        if _has_other_contents(path, starter):
            raise InputError(f"{path} already exists", hint="move the file, or choose a directory with --dir")
    for path, starter in starters.items():
        write_file(path, starter, with_parents=True)
        print_text(f"wrote {path}")


def _has_other_contents(path: Path, starter: bytes) -> bool:
    """Return whether writing the starter would destroy a file. An interrupted call may have left the starter itself."""
    try:
        return read_bounded(path, MAX_SETTINGS_BYTES, follow=True) != starter
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _print_next_steps(train: Path, site: Path, *, is_read: bool) -> None:
    print_text("next:")
    if not is_read:
        print_text(f"  export OPSCTL_SITE={site.absolute()}")
    print_text(f"  edit {train} and {site}")
    print_text(f"  opsctl preflight {train}")
    print_text("  opsctl doctor")
    print_text(f"  opsctl launch {train} --dry-run")
