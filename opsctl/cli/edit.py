"""`opsctl edit`: change what the next task of a train runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from opsctl.app import App
from opsctl.cli.output import dry_run_option, json_option, print_json, print_text, train_argument
from opsctl.cli.owner_tasks import reconcile_as_owner
from opsctl.errors import ConfigError, RunDirError
from opsctl.launch import launch_plan as planning
from opsctl.launch.revisions import Files, diff, frozen_changes, note_edit, read_files, swap, syntax_problems
from opsctl.preflight.checks.settings import SECRET
from opsctl.preflight.command_files import describe_missing, find_misplaced_paths
from opsctl.settings.loader import TrainSettings, load_train
from opsctl.state.files import MAX_SETTINGS_BYTES, read_json
from opsctl.state.lease import lease
from opsctl.state.run_dir import RunDir


@click.command()
@train_argument
@click.argument("changed", type=click.Path(path_type=Path))
@dry_run_option
@json_option
@click.pass_obj
def edit(app: App, train: str, changed: Path, *, dry_run: bool, as_json: bool) -> None:
    """Change what the next task of a train runs.

    The next task of TRAIN runs the settings in the file CHANGED. The running task is not affected. The table [slurm]
    cannot be changed, because sbatch fixed it when the tasks were queued.

    Every earlier version is kept in revisions/ of the run directory. To go back, edit with the train.toml in there.

    \b
    opsctl edit tiny-gpt lower-lr.toml --dry-run
    opsctl edit tiny-gpt lower-lr.toml
    """
    run = app.find(train)
    if not run.is_ours:
        raise RunDirError(f"{run.path}: belongs to another user; only the owner can edit the train")
    new = _checked(app, run, changed)
    now = read_files(run)
    assert now is not None  # app.find() found train.toml
    difference = diff(now, new)
    if dry_run:
        if as_json:
            print_json({"train": run.name, "would_change": bool(difference), "diff": difference})
        else:
            print_text(difference or f"{run.name}: nothing would change")
        return
    reconcile_as_owner(app, run)
    with lease(run.path, app.clock):
        revision = swap(run, new)
        note_edit(run, app.journal(run), revision)
    if as_json:
        print_json({"train": run.name, "changed": bool(revision), "revision": revision, "diff": difference})
    elif revision:
        print_text(f"{run.name}: the next task runs the changed files; the earlier ones are in revisions/{revision}")
    else:
        print_text(f"{run.name}: nothing has changed")


def _checked(app: App, run: RunDir, changed: Path) -> Files:
    """Return the files rendered from `changed`. Raises ConfigError with every problem."""
    before, after = load_train(run.config), load_train(changed)
    problems = [f"name: {after.name!r}, but the train is {run.name!r}"] if after.name != run.name else []
    problems += frozen_changes(before, after)
    problems += [
        f"[environment] {name}: would be readable by all in body.sh; put the value in a file and `source` it in [setup]"
        for name in after.environment
        if SECRET.search(name)
    ]
    problems += [
        f"{describe_missing(missing, after.setup.directory)}; correct the path"
        for missing in find_misplaced_paths(after, run.path, Path.cwd(), after.slurm.extra)
        if missing.is_needed
    ]
    body = planning.render_body(after, run, python=sys.executable)
    problems += syntax_problems(body, app.runner)
    if problems:
        raise ConfigError(
            str(changed),
            problems,
            hint=f"for another [slurm]: opsctl cancel {run.name} --queued-only, then launch again",
        )
    trainer = planning.trainer_json(_with_corpus_of(run, before, after), Path.cwd())
    return Files(config=changed.read_text(encoding="utf-8"), trainer=trainer, body=body)


def _with_corpus_of(run: RunDir, before: TrainSettings, after: TrainSettings) -> TrainSettings:
    """Return `after` with the data path of the launch, so that a relative path keeps its meaning."""
    if after.trainer is None or before.trainer is None or after.trainer.get("data") != before.trainer.get("data"):
        return after
    launched = read_json(run.trainer_config, MAX_SETTINGS_BYTES)
    return after.model_copy(update={"trainer": {**after.trainer, "data": launched["data"]}})
