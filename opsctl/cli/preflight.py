"""`opsctl preflight`: check a train for known mistakes before launch."""

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from opsctl.actions.check_train import check_train
from opsctl.app import App
from opsctl.cli.options import allow_option
from opsctl.cli.output import app_and_json, make_table, print_result
from opsctl.preflight.problem import Problem, ProblemSeverity

STYLES = {ProblemSeverity.ERROR: "red", ProblemSeverity.WARNING: "yellow", ProblemSeverity.NOTE: "dim"}


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Fail on warnings as well.")
@allow_option
@app_and_json
def preflight(app: App, file: Path, *, strict: bool, allow: tuple[str, ...]) -> int:
    """Check a train for known mistakes before launch.

    Checks settings, layout, memory, deadlines, disks, data and nodes of the train in FILE. Changes nothing. Exit 2 if
    there is an error, which `opsctl launch` would refuse; with --strict also for a warning.

    \b
    opsctl preflight tiny-gpt.toml
    opsctl preflight tiny-gpt.toml --strict --json
    """
    report = check_train(app, file, allow)
    is_ok = report.is_ok(strict=strict)
    data = {"train": report.train, "ok": is_ok, "findings": list(map(_to_json, report.problems))}
    rows: list[tuple[str | Text, ...]] = []
    for problem in report.problems:
        rows.append((Text(problem.severity, style=STYLES[problem.severity]), problem.check, problem.what))
        if problem.allowed:
            rows.append(("", "", Text(f"an error, allowed by {problem.allowed}", style="dim")))
        rows.append(("", "", Text(f"{problem.remedy} [{problem.source}]", style="dim")))
    counts = report.counts
    text = ", ".join(
        f"{count} {severity}{'s' * (count != 1)}" for severity in ProblemSeverity if (count := counts[severity])
    )
    summary = f"{report.train}: {text or 'no problems'}; {report.checks} checks"
    print_result(data, *([make_table(rows)] if rows else []), summary)
    return 0 if is_ok else 2


def _to_json(problem: Problem) -> dict[str, Any]:
    fields = ("severity", "check", "kind", "facts", "what", "source", "remedy", "allowed")
    return {name: getattr(problem, name) for name in fields}
