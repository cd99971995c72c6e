"""The first half of a launch: load the train, check it, and plan its submission. A dry run ends here."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from opsctl.actions.check_train import find_why_it_must_pass, list_allowed, list_problems
from opsctl.app import App
from opsctl.base.errors import ConfigError, OpsctlError
from opsctl.base.nodesets import fold, nodeset
from opsctl.checkpoints.save_directories import TrainCommand, find_in_command
from opsctl.launch import launch_plan as planning
from opsctl.launch.code_freeze import FrozenCode, find_unfrozen, plan_freeze
from opsctl.launch.revisions import Files, syntax_problems
from opsctl.launch.rollback_state import check_not_rolling_back
from opsctl.launch.submit import Launch, check_owner, new_nonce
from opsctl.launch.train_paths import load_resolved
from opsctl.preflight.problem import Problem, ProblemSeverity
from opsctl.settings.loader import TrainSettings
from opsctl.state import run_dir
from opsctl.state.run_dir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The options of `opsctl launch` that change the job."""

    after: str = ""
    """Job id; empty for a start at once."""
    tasks: int | None = None
    exclude: str = ""
    """Nodes to exclude besides those in the train's file."""
    nice: int | None = None
    allow: tuple[str, ...] = ()
    """Checks whose errors become warnings."""


def prepare_launch(app: App, file: Path, options: LaunchOptions, *, warn: Callable[[str], None]) -> Launch:
    """Check the train in `file` and plan its submission. Writes no file; calls `warn` with every warning.

    Raises ConfigError with all errors, InputError, NotTrusted, RunDirError, SlurmError.
    """
    app.check_settings(file)
    train = load_resolved(file)
    return prepare_train(app, train, file.read_text(encoding="utf-8"), options, where=str(file), warn=warn)


def prepare_train(
    app: App,
    train: TrainSettings,
    config: str,
    options: LaunchOptions,
    *,
    where: str,
    warn: Callable[[str], None],
) -> Launch:
    """Check `train` and plan its submission, as `prepare_launch` does.

    `config` is the text of its train.toml; `where` names its origin in errors.
    """
    run = RunDir(app.root / train.name)
    check_owner(run)
    check_not_rolling_back(run, app.clock)
    exclusions = app.exclusions.now()
    bad_nodes = [exclusion.node for exclusion in exclusions]
    if bad_nodes:
        warn(f"{train.name}: excludes {fold(bad_nodes)}, which opsctl judged bad; see opsctl nodes")
    spec = planning.job_spec(
        train,
        app.site,
        tasks=options.tasks,
        after=options.after,
        exclude=",".join(filter(None, (options.exclude, *bad_nodes))),
        nice=options.nice,
    )
    _check_run_directory(app, run)
    site_file = app.site_path and app.site_path.absolute()
    code, refusals = _freeze(app, train, warn)
    plan = planning.make_plan(
        train, spec, run, nonce=new_nonce(), python=sys.executable, site_file=site_file, code=code
    )
    problems = list_problems(app, train, spec, allow=options.allow, needs_slurm=True)
    refuse_errors(where, problems, [*refusals, *syntax_problems(plan.body, app.runner)])
    show_warnings(train.name, problems, warn)
    by_settings = nodeset(f"{train.slurm.exclude},{options.exclude}".strip(","))
    only_ours = [exclusion for exclusion in exclusions if exclusion.node not in by_settings]
    trainer = planning.trainer_json(train, Path.cwd())
    return Launch(
        plan=plan,
        files=Files(config=config, trainer=trainer, body=plan.body, code=code.record() if code else ""),
        code=code,
        arrays=app.arrays(run),
        clock=app.clock,
        group=app.site.group,
        check_trusted=lambda: app.check_trusted(run),
        expiring_exclusions=tuple(
            (exclusion.node, datetime.fromtimestamp(exclusion.until, UTC)) for exclusion in only_ours
        ),
        allowed=list_allowed(problems),
    )


def refuse_errors(where: str, problems: Sequence[Problem], refusals: Sequence[str], *, hint: str = "") -> None:
    """Raise ConfigError with all errors and `refusals`, if there are any."""
    errors = [problem for problem in problems if problem.severity is ProblemSeverity.ERROR]
    texts = [*map(_describe, errors), *refusals]
    allowable = sorted({problem.check for problem in errors if not find_why_it_must_pass(problem.check)})
    advice = f"opsctl preflight {where} shows the source of each check"
    if allowable:
        options = " ".join(f"--allow {check}" for check in allowable)
        advice += f"; if you know better: {options}"
    if texts:
        raise ConfigError(where, texts, hint=hint or advice)


def show_warnings(train: str, problems: Sequence[Problem], warn: Callable[[str], None]) -> None:
    for problem in problems:
        if problem.severity is ProblemSeverity.WARNING:
            allowed = f" (an error, allowed by {problem.allowed})" if problem.allowed else ""
            warn(f"{train}: warning{allowed}: {_describe(problem)}")


def _freeze(app: App, train: TrainSettings, warn: Callable[[str], None]) -> tuple[FrozenCode | None, list[str]]:
    """Return the copy of the code that the launch makes, or the problem that prevents the copy."""
    try:
        code = plan_freeze(train.setup, app.runner, root=app.root)
    except OpsctlError as error:
        return None, [f"{error.message}\n    -> {error.hint}" if error.hint else error.message]
    if code is None:
        return None, []
    for text in find_unfrozen(code, (*train.command, *train.environment.values(), *train.setup.lines)):
        warn(f"{train.name}: warning: {text!r:.120} names {code.source}, which is not the copy that runs")
    for reason in _list_saves_in_copy(train):
        warn(
            f"{train.name}: warning: {reason}: a relative path lies in the copy of the code, and after `opsctl edit`"
            " the trainer finds no checkpoint there; use an absolute path, or {{ checkpoint_dir }}"
        )
    return code, []


def _list_saves_in_copy(train: TrainSettings) -> list[str]:
    """Return what names a directory of checkpoints by a relative path."""
    place = Path(train.setup.directory)
    command = TrainCommand(words=train.command, environment=train.environment, directory=place, checkpoints=Path("/"))
    named = [(text, f"checkpoint_directories = {text}") for text in train.progress.checkpoint_directories]
    named += find_in_command(command)
    return [reason for text, reason in named if not text.startswith(("/", "~", "$"))]


def _describe(problem: Problem) -> str:
    return f"{problem.what}\n    -> {problem.remedy}"


def _check_run_directory(app: App, run: RunDir) -> None:
    """Raise RunDirError, before any file is written, if others can write the run directory."""
    existing = next(path for path in (run.path, *run.path.parents) if path.exists())
    if app.site.trust_parents and existing not in (run.path, app.root):
        return
    run_dir.check_trusted([existing], root=app.root if app.site.trust_parents else None)
