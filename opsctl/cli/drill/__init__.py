"""`opsctl drill`: break a train on purpose, and score what follows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opsctl.base.errors import InputError
from opsctl.base.tables import PACKAGE
from opsctl.cli.output import app_json_and_dry_run, make_table, print_on_stderr, print_result, wants_json
from opsctl.host.system import replace_process, state_home
from opsctl.sandbox.fault_table import Fault, read_faults
from opsctl.settings.loader import read_toml

if TYPE_CHECKING:
    from opsctl.app import App
    from opsctl.cli.drill.run_drill import Score

COLUMNS = ("fault", "noticed", "cause", "action", "alert", "steps lost", "training after", "result")
DATA = PACKAGE / "cli" / "drill"
OWN = frozenset({"process", "job"})
"""What the faults of any train touch: its own processes and its own job."""


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--fault", "names", multiple=True, metavar="FAULT", help="Drill only this fault; repeatable.")
@click.option("--list", "lists", is_flag=True, help="List the faults, and where each happened.")
@click.option("--confirm", metavar="TRAIN", help="Name of the train in FILE, unless it begins with drill.")
@click.option("--markdown", is_flag=True, help="Print the score card as a Markdown table.")
@app_json_and_dry_run
def drill(
    app: App,
    file: Path | None,
    *,
    names: Sequence[str],
    lists: bool,
    confirm: str | None,
    markdown: bool,
    dry_run: bool,
) -> int:
    """Break a train on purpose and score what opsctl does.

    Without FILE, a small train is drilled on a sandbox, which is removed afterwards. With FILE, a TRAIN.toml with a
    small model and short steps, its train is drilled on the cluster of the site, by faults that touch nothing but its
    own processes and its own job; alerts and watch cycles are those of the site. Each fault gets its own train.

    The exit code is 0 if opsctl did everything right.

    \b
    opsctl drill
    opsctl drill --list
    opsctl drill --fault node-dead --fault code-bug --markdown
    opsctl drill small.toml --confirm small --dry-run
    """
    fields = read_train(app, file, confirm) if file else {}
    faults = choose_faults(names, is_made_for_drills=file is None or str(DATA / "trainer.sh") in fields["command"])
    if lists or dry_run:
        columns = ("name", "says", "source") if lists else ("name", "touches", "inject", "undo")
        print_result(faults, make_table([[getattr(fault, name) for name in columns] for fault in faults], columns))
        return 0
    if file is None:
        words = [*(f"--fault={name}" for name in names), *(["--json"] if wants_json() else [])]
        words += ["--markdown"] if markdown else []
        replace_process(["bash", str(DATA / "on_sandbox.sh"), str(state_home() / "drill"), sys.executable, *words])
    from opsctl.cli.drill.run_drill import Drills  # noqa: PLC0415 (--help needs no Slurm)

    scores = Drills(app=app, fields=fields, show=print_on_stderr).run(faults)
    rows = list(map(make_row, scores))
    table = "\n".join(f"| {' | '.join(row)} |" for row in (COLUMNS, ["---"] * len(COLUMNS), *rows))
    print_result(scores, table if markdown else make_table(rows, COLUMNS))
    return 1 if any(score.wrong for score in scores) else 0


def make_row(score: Score) -> tuple[str, ...]:
    noticed, back = ("-" if time is None else f"{time:.0f} s" for time in (score.noticed_s, score.back_s))
    alert = f"{', '.join(score.alerts)} to {', '.join(score.channels) or 'nobody'}" if score.alerts else "none"
    lost = "-" if score.steps_lost is None else str(score.steps_lost)
    result = f"wrong: {', '.join(score.wrong)}" if score.wrong else "right"
    return score.fault, noticed, score.cause or "none", score.action or "none", alert, lost, back, result


def choose_faults(names: Sequence[str], *, is_made_for_drills: bool) -> list[Fault]:
    """Return the faults to drill, in the order of the table. Raises InputError."""
    faults = {name: fault for name, fault in read_faults().items() if is_made_for_drills or fault.touches in OWN}
    if unknown := [name for name in names if name not in faults]:
        raise InputError(f"no fault {unknown[0]!r} for this train", hint=f"one of: {', '.join(faults)}")
    return [fault for name, fault in faults.items() if not names or name in names]


def read_train(app: App, file: Path, confirm: str | None) -> dict[str, Any]:
    """Return the settings of a train. Raises InputError for a train that is not meant to be broken."""
    app.check_settings(file)
    fields = read_toml(file)
    name = str(fields.get("name", ""))
    if not name.startswith("drill") and confirm != name:
        raise InputError(
            f"{file}: {name} is not marked as a drill, and a drill breaks the train",
            hint=f"begin its name with drill, or confirm: opsctl drill {file} --confirm {name}",
        )
    return fields
