"""`opsctl launch`: check, render and submit a train."""

from dataclasses import asdict
from pathlib import Path

import click

from opsctl.actions.prepare_launch import LaunchOptions, prepare_launch
from opsctl.actions.steer_train import submit
from opsctl.app import App
from opsctl.cli.options import allow_option
from opsctl.cli.output import app_json_and_dry_run, print_on_stderr, print_result


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--after", metavar="JOB", default="", help="Start after JOB; an array of the same train is extended.")
@click.option("--tasks", type=click.IntRange(min=1), help="Number of array tasks to queue, instead of the one in FILE.")
@click.option("--exclude", metavar="NODES", default="", help="Nodes to exclude, besides those in FILE.")
@click.option("--nice", type=int, help="Lower the priority of the job by this much.")
@allow_option
@app_json_and_dry_run
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
    planned = prepare_launch(app, file, options, warn=print_on_stderr)
    plan, run = planned.plan, planned.run
    if dry_run:
        head = f"# would submit {plan.spec.tasks} tasks of {plan.spec.nodes} nodes as train {plan.train}"
        print_result(plan, f"{head}\n# --- wrapper.slurm\n{plan.wrapper}\n# --- body.sh\n{plan.body}")
        return
    submitted = submit(app, planned, show=print_on_stderr)
    action = "was already submitted" if submitted.already else "submitted"
    lines = [
        f"{plan.train}: {action} as array {submitted.array}, {submitted.tasks} tasks; its run directory is {run.path}",
        *(f"  {note}" for note in submitted.notes),
        f"  opsctl status {plan.train}",
    ]
    print_result({"train": plan.train, "run_dir": str(run.path), **asdict(submitted)}, "\n".join(lines))
