"""`opsctl edit`: change what the next task of a train runs."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from opsctl.actions.check_train import list_allowed, list_problems
from opsctl.actions.owner_actions import reconcile_own_train
from opsctl.actions.prepare_launch import refuse_errors, show_warnings
from opsctl.actions.steer_train import arm_switch
from opsctl.app import App
from opsctl.base.errors import RunDirError
from opsctl.cli.options import allow_option, reason_option
from opsctl.cli.output import app_json_and_dry_run, print_on_stderr, print_result, train_argument
from opsctl.launch import launch_plan as planning
from opsctl.launch.code_freeze import FrozenCode, plan_freeze, store
from opsctl.launch.revisions import Files, diff, frozen_changes, note_edit, read_files, swap, syntax_problems
from opsctl.launch.train_paths import find_launched_paths, resolve_paths
from opsctl.settings.loader import load_train
from opsctl.state.events import Allowed
from opsctl.state.lease import lease
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch


@click.command()
@train_argument
@click.argument("changed", type=click.Path(path_type=Path))
@allow_option
@reason_option
@click.option("--now", is_flag=True, help="Restart the running task with the changed files.")
@app_json_and_dry_run
def edit(app: App, train: str, changed: Path, *, allow: tuple[str, ...], reason: str, now: bool, dry_run: bool) -> None:
    """Change what the next task of a train runs.

    The next task of TRAIN runs the settings in the file CHANGED. The running task is not affected, unless --now
    restarts it. The table [slurm]
    cannot be changed, because Slurm fixed it when the tasks were queued. The command runs the checks of `opsctl
    preflight`, except those of the queued job. With [setup] freeze, the command copies the trainer's code again, also
    if CHANGED is the train's own train.toml.

    Every earlier version is kept in revisions/ of the run directory. To go back, edit with the train.toml in there.

    \b
    opsctl edit tiny-gpt lower-lr.toml --dry-run
    opsctl edit tiny-gpt lower-lr.toml
    opsctl edit tiny-gpt lower-lr.toml --allow batch
    opsctl edit tiny-gpt lower-lr.toml --now
    """
    run = app.find(train)
    if not run.is_ours:
        raise RunDirError(f"{run.path}: belongs to another user; only the owner can edit the train")
    app.check_settings(changed)
    before = read_files(run)  # before the checks, which take seconds: a rollback may begin meanwhile
    assert before is not None  # app.find() found train.toml
    new, code, allowed = _checked(app, run, changed, allow)
    difference = diff(before, new)
    if dry_run:
        data = {"train": run.name, "would_change": bool(difference), "diff": difference}
        print_result(data, difference or f"{run.name}: nothing would change")
        return
    reconcile_own_train(app, run, show=print_on_stderr)
    revision = _replace(app, run, before, new, code=code, allowed=allowed, why=reason)
    done = f"the next task runs the changed files; the earlier ones are in revisions/{revision}"
    restarted = arm_switch(app, run, Switch.RESTART, "edited") if now and revision else None
    done += f"; {restarted.text}" if restarted else ""
    data = {"train": run.name, "changed": bool(revision), "revision": revision, "diff": difference}
    print_result(data | {"restarts": bool(restarted)}, f"{run.name}: {done if revision else 'nothing has changed'}")


def _replace(
    app: App, run: RunDir, now: Files, new: Files, *, code: FrozenCode | None, allowed: Sequence[Allowed], why: str
) -> str:
    """Replace the files `now` by `new` and return the revision that keeps `now`; empty if nothing changed.

    Raises RunDirError if another process has replaced `now`.
    """
    with lease(run.path, app.clock):
        if read_files(run) != now:
            raise RunDirError(
                f"{run.name}: another edit or a rollback has changed the files meanwhile",
                hint=f"opsctl edit {run.name} again; --dry-run shows the difference",
            )
        if code:
            store(code, run)
        revision = swap(run, new)
        journal = app.journal(run)
        note_edit(run, journal, revision, why)
        if revision:
            for error in allowed:
                journal.append(error)
    return revision


def _checked(
    app: App, run: RunDir, changed: Path, allow: Sequence[str]
) -> tuple[Files, FrozenCode | None, tuple[Allowed, ...]]:
    """Return the files rendered from `changed`, the copy of the code that they run, and the allowed errors.

    Raises ConfigError with every problem.
    """
    before, after = load_train(run.config), load_train(changed)
    refusals = [f"name: {after.name!r}, but the train is {run.name!r}"] if after.name != run.name else []
    frozen = frozen_changes(before, after)
    known = find_launched_paths(before, run.config) | find_launched_paths(after, changed)
    resolved = resolve_paths(after, changed.absolute().parent, known=known)
    problems = list_problems(app, resolved, planning.job_spec(after, app.site), allow=allow, is_queued=True)
    code = plan_freeze(after.setup, app.runner, root=app.root)
    body = planning.render_body(after, run, python=sys.executable, code=code)
    hint = f"for another [slurm]: opsctl cancel {run.name} --queued-only, then launch again" if frozen else ""
    refuse_errors(str(changed), problems, [*refusals, *frozen, *syntax_problems(body, app.runner)], hint=hint)
    show_warnings(run.name, problems, print_on_stderr)
    if before.rollback.step is not None and after.rollback != before.rollback:
        print_on_stderr(
            f"{run.name}: warning: [rollback] differs from that of {run.config}: the skipped samples, the scale of the"
            " learning rate or the first step change"
        )
    trainer = planning.trainer_json(resolved, changed.absolute().parent)
    config = changed.read_text(encoding="utf-8")
    files = Files(config=config, trainer=trainer, body=body, code=code.record() if code else "")
    return files, code, list_allowed(problems)
