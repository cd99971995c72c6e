"""`opsctl preflight`: check a train for known mistakes before launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from opsctl.app import App
from opsctl.cli.output import json_option, print_json, print_table, print_text
from opsctl.errors import ConfigError, OpsctlError
from opsctl.launch.launch_plan import job_spec, render_body
from opsctl.launch.revisions import syntax_problems
from opsctl.model import JobSpec
from opsctl.preflight.checks import CHECKS
from opsctl.preflight.gather_facts import gather, gather_cluster
from opsctl.preflight.problem import LaunchRequest, Problem, ProblemLevel, error, judge
from opsctl.preflight.recipe import read_recipe
from opsctl.settings.loader import TrainSettings, load_train
from opsctl.state.journal import actor
from opsctl.state.run_dir import RunDir

STYLES = {ProblemLevel.ERROR: "red", ProblemLevel.WARNING: "yellow", ProblemLevel.NOTE: "dim"}


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Fail on warnings as well.")
@json_option
@click.pass_obj
def preflight(app: App, file: Path, *, strict: bool, as_json: bool) -> None:
    """Check a train for known mistakes before launch.

    Checks settings, layout, memory, deadlines, disks, data and nodes of the train in FILE. Changes nothing. Exit 2 if
    there is an error, which `opsctl launch` would refuse; with --strict also for a warning.

    \b
    opsctl preflight tiny-gpt.toml
    opsctl preflight tiny-gpt.toml --strict --json
    """
    train = load_train(file, layout=False)
    problems = [*findings(app, train, job_spec(train, app.site)), *_syntax(app, train)]
    counts = Counter(problem.level for problem in problems)
    failed = bool(counts[ProblemLevel.ERROR] or (strict and counts[ProblemLevel.WARNING]))
    if as_json:
        print_json({"train": train.name, "ok": not failed, "findings": [asdict(problem) for problem in problems]})
    else:
        _show(train.name, problems, counts)
    if failed:
        click.get_current_context().exit(2)


def findings(app: App, train: TrainSettings, spec: JobSpec, *, needs_slurm: bool = False) -> list[Problem]:
    """Return the problems of all checks. Raises OpsctlError.

    Without `needs_slurm`, checks are unknown while Slurm does not answer; with it, that is an error.
    """
    request, user, unknown = LaunchRequest(train=train, spec=spec, recipe=read_recipe(train)), actor(), {}
    try:
        slurm = gather_cluster(app.scheduler, spec, user)
    except OpsctlError as refusal:
        if needs_slurm:
            raise
        slurm, unknown = None, {"Slurm": refusal.message}
    place = app.place(RunDir(app.root / train.name), user)
    return judge(CHECKS.items(), request, gather(request, place, slurm, unknown))


def _syntax(app: App, train: TrainSettings) -> list[Problem]:
    """Return the problems of the rendered body."""
    try:
        text = render_body(train, RunDir(app.root / train.name), python="python3")
    except ConfigError as refusal:
        problems: Sequence[str] = refusal.problems
    else:
        problems = syntax_problems(text, app.runner)
    return [
        Problem(**{**asdict(error(problem, "correct it")), "check": "body", "source": "bash -n"})
        for problem in problems
    ]


def _show(train: str, problems: Sequence[Problem], counts: Counter[ProblemLevel]) -> None:
    if problems:
        table = Table.grid(padding=(0, 2))
        for problem in problems:
            table.add_row(Text(problem.level, style=STYLES[problem.level]), problem.check, Text(problem.what))
            table.add_row("", "", Text(f"{problem.remedy} [{problem.source}]", style="dim"))
        print_table(table)
    text = ", ".join(f"{counts[level]} {level}{'s' * (counts[level] != 1)}" for level in ProblemLevel if counts[level])
    print_text(f"{train}: {text or 'nothing stands against it'}; {len(CHECKS)} checks")
