"""`opsctl launch`: check, render and submit a train."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import click

from opsctl.app import App
from opsctl.cli.output import dry_run_option, json_option, print_json, print_text
from opsctl.cli.owner_tasks import reconcile_as_owner
from opsctl.cli.preflight import findings
from opsctl.errors import ConfigError
from opsctl.launch import launch_plan as planning
from opsctl.launch.revisions import Files, syntax_problems
from opsctl.launch.submit import Launch, SubmittedArray, check_owner, new_nonce
from opsctl.model import JobSpec, LaunchPlan
from opsctl.nodesets import fold, nodeset
from opsctl.preflight.problem import Problem, ProblemLevel
from opsctl.settings.loader import TrainSettings, load_train
from opsctl.state import run_dir
from opsctl.state.run_dir import RunDir


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--after", metavar="JOB", default="", help="Start after JOB; an array of the same train is extended.")
@click.option("--tasks", type=click.IntRange(min=1), help="Number of array tasks to queue, instead of the one in FILE.")
@click.option("--exclude", metavar="NODES", default="", help="Nodes to exclude, besides those in FILE.")
@click.option("--nice", type=int, help="Lower the priority of the job by this much.")
@dry_run_option
@json_option
@click.pass_obj
def launch(
    app: App, file: Path, *, after: str, tasks: int | None, exclude: str, nice: int | None, dry_run: bool, as_json: bool
) -> None:
    """Check, render and submit a train.

    Submits the train in FILE as one job array whose tasks run one after the other. After an interruption, launch
    again: the command looks in the queue before it submits.

    \b
    opsctl launch tiny-gpt.toml --dry-run
    opsctl launch tiny-gpt.toml --tasks 20 --exclude node[003-004]
    opsctl launch tiny-gpt.toml --after 1234
    """
    train = load_train(file, layout=False)
    exclusions = app.exclusions.now()
    bad = [exclusion.node for exclusion in exclusions]
    if bad:
        click.echo(f"{train.name}: excludes {fold(bad)}, which opsctl judged bad; see opsctl nodes", err=True)
    excluded = ",".join(filter(None, (exclude, *bad)))
    spec = planning.job_spec(train, app.site, tasks=tasks, after=after, exclude=excluded, nice=nice)
    named = nodeset(f"{train.slurm.exclude},{exclude}".strip(","))
    ends = [
        (exclusion.node, datetime.fromtimestamp(exclusion.until, UTC))
        for exclusion in exclusions
        if exclusion.node not in named
    ]
    order = replace(_prepare(app, file, train, spec), expiring_exclusions=tuple(ends))
    if dry_run:
        _show(order.plan, as_json=as_json)
        return
    if (done := order.find_submitted()) is None:
        reconcile_as_owner(app, order.run)
        done = order.carry_out()
    if as_json:
        print_json({"train": train.name, "run_dir": str(order.run.path), **asdict(done)})
        return
    _print_submitted(train.name, order.run, done)


def _prepare(app: App, file: Path, train: TrainSettings, spec: JobSpec) -> Launch:
    """Prepare the launch and print warnings. Raises ConfigError with every problem."""
    run = RunDir(app.root / train.name)
    check_owner(run)
    _check_place(app, run)
    plan = planning.make_plan(
        train, spec, run, nonce=new_nonce(), python=sys.executable, site_file=app.site_path and app.site_path.absolute()
    )
    problems = findings(app, train, spec, needs_slurm=True)
    errors = [_describe(problem) for problem in problems if problem.level is ProblemLevel.ERROR] + syntax_problems(
        plan.body, app.runner
    )
    if errors:
        raise ConfigError(str(file), errors, hint=f"opsctl preflight {file} shows the source of each check")
    for problem in problems:
        if problem.level is ProblemLevel.WARNING:
            click.echo(f"{train.name}: warning: {_describe(problem)}", err=True)
    files = Files(
        config=file.read_text(encoding="utf-8"), trainer=planning.trainer_json(train, Path.cwd()), body=plan.body
    )
    return Launch(
        plan=plan,
        files=files,
        chain=app.chain(run),
        clock=app.clock,
        group=app.site.group,
        check_trusted=lambda: app.check_trusted(run),
    )


def _describe(finding: Problem) -> str:
    return f"{finding.what}\n    -> {finding.remedy}"


def _check_place(app: App, run: RunDir) -> None:
    """Raise RunDirError, before any file is written, if others can write the run directory."""
    existing = next(path for path in (run.path, *run.path.parents) if path.exists())
    if app.site.trust_parents and existing not in (run.path, app.root):
        return
    run_dir.check_trusted([existing], root=app.root if app.site.trust_parents else None)


def _show(plan: LaunchPlan, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(plan))
        return
    print_text(f"# would submit {plan.spec.tasks} tasks of {plan.spec.nodes} nodes as train {plan.train}")
    print_text(f"# --- wrapper.slurm\n{plan.wrapper}\n# --- body.sh\n{plan.body}")


def _print_submitted(train: str, run: RunDir, done: SubmittedArray) -> None:
    action = "was already submitted" if done.already else "submitted"
    print_text(f"{train}: {action} as array {done.array}, {done.tasks} tasks; its run directory is {run.path}")
    for note in done.notes:
        print_text(f"  {note}")
    print_text(f"  opsctl status {train}")
