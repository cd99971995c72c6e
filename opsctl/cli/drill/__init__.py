"""`opsctl drill`: break a train on purpose, and score what follows; `--acceptance`: try a cluster before a long run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from opsctl.base.errors import InputError
from opsctl.base.tables import PACKAGE
from opsctl.base.units import format_time
from opsctl.cli.dependent_option import dependent_option
from opsctl.cli.options import INTERVAL
from opsctl.cli.output import app_json_and_dry_run, make_table, print_on_stderr, print_result, wants_json, write_file
from opsctl.host.system import replace_process, run_attached, state_home
from opsctl.sandbox.faults import Fault, read_faults
from opsctl.settings.loader import read_toml
from opsctl.state.files import read_text

if TYPE_CHECKING:
    from opsctl.app import App

DATA = PACKAGE / "cli" / "drill"
CHOICES = frozenset({"nodes", "partition", "account", "qos", "reservation", "constraint"})
BREAKABLE = (str(DATA / "trainer.sh"), str(DATA / "breakable.sh"))
"""The trainer that reads `faults/` in its run directory, and the script that makes any trainer do so."""
OWN = frozenset({"process", "job"})
"""What the faults of any train touch: its own processes and its own job."""
SANDBOX = "drill"
MAX_TRIALS_BYTES = 1 << 20
TRIAL_COLUMNS = ("trial", "what is tried", "result", "took", "found")


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--fault", "names", multiple=True, metavar="FAULT", help="Drill only this fault; repeatable.")
@click.option("--list", "lists", is_flag=True, help="List the faults, and where each happened.")
@dependent_option("--acceptance", not_with=("--fault",), is_flag=True, help="Try a cluster instead.")
@dependent_option("--sandbox", only_with=("FILE",), is_flag=True, help="Drill FILE on a sandbox, by all faults.")
@click.option("--confirm", metavar="TRAIN", help="Name of the train in FILE, unless it begins with drill.")
@click.option("--timeout", type=INTERVAL, default="30m", show_default=True, help="Time limit until a train trains.")
@click.option("--html", type=click.Path(path_type=Path, resolve_path=True), help="Write the card to this file.")
@click.option("--markdown", is_flag=True, help="Print the card as a Markdown table.")
@app_json_and_dry_run
def drill(
    app: App,
    file: Path | None,
    *,
    names: Sequence[str],
    lists: bool,
    acceptance: bool,
    sandbox: bool,
    confirm: str | None,
    timeout: timedelta,
    html: Path | None,
    markdown: bool,
    dry_run: bool,
) -> int:
    """Break a train on purpose and score what opsctl does.

    Without FILE, a small train is drilled on a sandbox, which is removed afterwards. With FILE, a TRAIN.toml with a
    small model and short steps, its train is drilled on the cluster of the site, by faults that touch nothing but its
    own processes and its own job; alerts and watch cycles are those of the site. With --sandbox too, its train is
    drilled on a sandbox, by all faults. Each fault gets its own train.

    With --acceptance, tries nodes, file system, queue, alerts, switches and restarts, on as many idle nodes as FILE
    asks for.

    The exit code is 0 if everything was right.

    \b
    opsctl drill
    opsctl drill --list
    opsctl drill --fault node-dead --fault code-bug --html card.html
    opsctl drill small.toml --confirm small --sandbox
    opsctl drill small.toml --confirm small --dry-run
    opsctl drill small.toml --confirm small --acceptance
    """
    fields = read_train(app, file, confirm) if file else {}
    if acceptance and (dry_run or (file and not sandbox)):
        return accept(app, file, fields, dry_run=dry_run, html=html)
    faults = choose_faults(names, fields if file and not sandbox else None)
    if lists or dry_run:
        columns = ("name", "says", "source") if lists else ("name", "touches", "inject", "undo")
        print_result(faults, make_table([[getattr(fault, name) for name in columns] for fault in faults], columns))
        return 0
    if file is None or sandbox:
        words = [str(file.absolute() if file else "train.toml"), *(f"--fault={name}" for name in names)]
        words += [f"--timeout={timeout.total_seconds():.0f}s", f"--confirm={confirm or ''}"]
        words += [f"--html={html}"] if html else []
        given = {"--json": wants_json(), "--markdown": markdown, "--acceptance": acceptance}
        words += [option for option, is_given in given.items() if is_given]
        replace_process(["bash", str(DATA / "on_sandbox.sh"), str(state_home() / "drill"), sys.executable, *words])
    from opsctl.cli.drill.run_drill import SCORE_FIELDS, Drills  # noqa: PLC0415 (--help needs no Slurm)
    from opsctl.report.formats import DRILL_COLUMNS, drill_row  # noqa: PLC0415 (as above)

    scores = Drills(app=app, fields=fields, patience=timeout, show=print_on_stderr).run(faults)
    data = [{name: getattr(score, name) for name in SCORE_FIELDS} for score in scores]
    show_card(app, data, map(drill_row, scores), DRILL_COLUMNS, html=html, markdown=markdown)
    return 1 if any(score.wrong for score in scores) else 0


def show_card(
    app: App,
    data: object,
    rows: Iterable[Sequence[str]],
    columns: Sequence[str],
    *,
    html: Path | None,
    markdown: bool,
) -> None:
    """Print the card, and write it as a page to `html`."""
    from opsctl.launch.render import render_page  # noqa: PLC0415 (--help needs no templates)
    from opsctl.report.formats import render_rows  # noqa: PLC0415 (as above)

    rows = list(rows)
    if html:
        made = format_time(app.clock.now())
        write_file(html, render_page("report/table.html.j2", columns=columns, rows=rows, made=made))
    print_result(data, render_rows(columns, rows) if markdown else make_table(rows, columns))


def accept(app: App, file: Path | None, fields: Mapping[str, Any], *, dry_run: bool, html: Path | None) -> int:
    """Try a cluster, and show what was found. Return the exit code of the trials."""
    with TemporaryDirectory() as place:
        found = Path(place) / "trials"
        env = {**os.environ, **name_settings(app, file, fields, dry_run=dry_run), "TRIALS": str(found)}
        code = run_attached(["bash", str(DATA / "acceptance.sh")], env=env)
        rows = [line.split("\t") for line in read_text(found, MAX_TRIALS_BYTES).splitlines()]
    data = [
        {"trial": name, "says": says, "result": result, "took_s": int(took_s or 0), "found": words}
        for name, says, result, took_s, words in rows
    ]
    shown = [(*row[:3], f"{row[3]} s" if row[3] else "", row[4]) for row in rows]
    show_card(app, data, shown, TRIAL_COLUMNS, html=html, markdown=True)
    return code


def name_settings(app: App, file: Path | None, fields: Mapping[str, Any], *, dry_run: bool) -> dict[str, str]:
    """Return the variables of acceptance.sh; SLURM_* are those of srun."""
    slurm = {f"SLURM_{name}".upper(): str(value) for name, value in fields.get("slurm", {}).items() if name in CHOICES}
    where = {"FILE": str(file and file.absolute()), "NAME": str(fields.get("name")), "ROOT": str(app.root)}
    mode = {"DRY_RUN": "yes"} if dry_run else app.engine_env
    return {**slurm, **where, **mode, "OPSCTL": shlex.join(app.program)}


def choose_faults(names: Sequence[str], fields: Mapping[str, Any] | None) -> list[Fault]:
    """Return the faults for a train, in the order of the table; for any train of a sandbox without fields.

    Raises InputError.
    """
    has_all = fields is None or is_breakable(fields)
    faults = {name: fault for name, fault in read_faults().items() if has_all or fault.touches in OWN}
    if unknown := [name for name in names if name not in faults]:
        raise InputError(f"no fault {unknown[0]!r} for this train", hint=f"one of: {', '.join(faults)}")
    return [fault for name, fault in faults.items() if name in names or not (names or fault.only_named)]


def is_breakable(fields: Mapping[str, Any]) -> bool:
    """Return whether the command, or a line of `[setup]` that is no comment, names a file of BREAKABLE."""
    lines = [line for line in fields.get("setup", {}).get("lines", ()) if not line.lstrip().startswith("#")]
    text = "\n".join((*fields.get("command", ()), *lines))
    return any(file in text for file in BREAKABLE)


def read_train(app: App, file: Path, confirm: str | None) -> dict[str, Any]:
    """Return the settings of a train, breakable on the drill's own sandbox.

    Raises InputError for a train that is not meant to be broken.
    """
    app.check_settings(file)
    fields = read_toml(file)
    if app.site.sandbox == SANDBOX and not is_breakable(fields):
        setup = fields.setdefault("setup", {})
        setup["lines"] = [*setup.get("lines", ()), f". {shlex.quote(str(DATA / 'breakable.sh'))}"]
    name = str(fields.get("name", ""))
    if not name.startswith("drill") and confirm != name:
        raise InputError(
            f"{file}: {name} is not marked as a drill, and a drill breaks the train",
            hint=f"begin its name with drill, or confirm: opsctl drill {file} --confirm {name}",
        )
    return fields
