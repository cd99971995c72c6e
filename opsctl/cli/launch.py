"""`opsctl launch`: check, render and submit a train."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from opsctl.app import App
from opsctl.base.model import LaunchPlan
from opsctl.cli.options import allow_option
from opsctl.cli.output import dry_run_option, json_option, print_json, print_text
from opsctl.cli.owner_tasks import reconcile_as_owner
from opsctl.launch.submit import SubmittedArray
from opsctl.preflight.prepare_launch import LaunchOptions, prepare_launch
from opsctl.state.run_dir import RunDir


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--after", metavar="JOB", default="", help="Start after JOB; an array of the same train is extended.")
@click.option("--tasks", type=click.IntRange(min=1), help="Number of array tasks to queue, instead of the one in FILE.")
@click.option("--exclude", metavar="NODES", default="", help="Nodes to exclude, besides those in FILE.")
@click.option("--nice", type=int, help="Lower the priority of the job by this much.")
@allow_option
@dry_run_option
@json_option
@click.pass_obj
def launch(
    app: App,
    file: Path,
    *,
    after: str,
    tasks: int | None,
    exclude: str,
    nice: int | None,
    allow: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Check, render and submit a train.

    Submits the train in FILE as one job array whose tasks run one after the other. After an interruption, launch
    again: the command looks in the queue before it submits.

    \b
    opsctl launch tiny-gpt.toml --dry-run
    opsctl launch tiny-gpt.toml --tasks 20 --exclude node[003-004]
    opsctl launch tiny-gpt.toml --after 1234
    opsctl launch tiny-gpt.toml --allow batch
    """
    options = LaunchOptions(after=after, tasks=tasks, exclude=exclude, nice=nice, allow=allow)
    planned = prepare_launch(app, file, options, warn=lambda text: click.echo(text, err=True))
    if dry_run:
        _show(planned.plan, as_json=as_json)
        return
    submitted = planned.find_submitted()
    if submitted is None:
        reconcile_as_owner(app, planned.run)
        submitted = planned.carry_out()
    if as_json:
        print_json({"train": planned.plan.train, "run_dir": str(planned.run.path), **asdict(submitted)})
        return
    _print_submitted(planned.plan.train, planned.run, submitted)


def _show(plan: LaunchPlan, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(plan))
        return
    print_text(f"# would submit {plan.spec.tasks} tasks of {plan.spec.nodes} nodes as train {plan.train}")
    print_text(f"# --- wrapper.slurm\n{plan.wrapper}\n# --- body.sh\n{plan.body}")


def _print_submitted(train: str, run: RunDir, submitted: SubmittedArray) -> None:
    action = "was already submitted" if submitted.already else "submitted"
    print_text(
        f"{train}: {action} as array {submitted.array}, {submitted.tasks} tasks; its run directory is {run.path}"
    )
    for note in submitted.notes:
        print_text(f"  {note}")
    print_text(f"  opsctl status {train}")
