"""Run every check of preflight on a train. An error that the user allows becomes a warning, and is journalled."""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.app import App
from opsctl.base.errors import ConfigError, InputError, MissingProgram, OpsctlError
from opsctl.base.model import JobSpec
from opsctl.base.ports import Runner, TimedOut
from opsctl.checkpoints.trainer_command.read_command import find_outside
from opsctl.launch.code_freeze import plan_freeze
from opsctl.launch.launch_plan import job_spec, render_body
from opsctl.launch.revisions import syntax_problems
from opsctl.launch.train_paths import load_resolved
from opsctl.preflight.checks import CHECKS
from opsctl.preflight.command_files import exists
from opsctl.preflight.facts import ClusterFacts, MisplacedPath
from opsctl.preflight.gather_facts import LaunchPlace, gather, gather_cluster
from opsctl.preflight.problem import (
    Check,
    LaunchRequest,
    Problem,
    ProblemSeverity,
    error,
    find_near,
    judge,
    note,
    read_table,
    sort_problems,
    warning,
)
from opsctl.preflight.recipe import read_recipe
from opsctl.settings.container import ContainerTable
from opsctl.settings.loader import TrainSettings
from opsctl.state.events import Allowed
from opsctl.state.journal import actor
from opsctl.state.run_dir import RunDir

SRUN_TIMEOUT_S = 10.0
BEYOND_CHECKS = frozenset({"container"})
"""Names of problems that are not in CHECKS, and that can be allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """The problems of a train: errors first, then warnings, then notes; problems of the rendered body last."""

    train: str
    problems: tuple[Problem, ...]
    checks: int
    """The number of checks that ran."""

    @property
    def counts(self) -> Counter[ProblemSeverity]:
        return Counter(problem.severity for problem in self.problems)

    def is_ok(self, *, strict: bool) -> bool:
        """Return whether there is no error and, with `strict`, no warning."""
        return not self.counts[ProblemSeverity.ERROR] and not (strict and self.counts[ProblemSeverity.WARNING])


def check_train(app: App, file: Path, allow: Sequence[str] = ()) -> PreflightReport:
    """Check the train in `file`. `allow` names checks whose errors become warnings.

    Raises ConfigError for an invalid file. Without Slurm, its facts are unknown.
    """
    train = load_resolved(file)
    problems = list_problems(app, train, job_spec(train, app.site), allow=allow)
    problems += [*_check_body(app, train), *_check_freeze(app, train)]
    return PreflightReport(train=train.name, problems=tuple(problems), checks=len(CHECKS))


def list_problems(
    app: App,
    train: TrainSettings,
    spec: JobSpec,
    *,
    allow: Sequence[str] = (),
    needs_slurm: bool = False,
    is_queued: bool = False,
) -> list[Problem]:
    """Return the problems of all checks. `allow` names checks whose errors become warnings.

    Facts of Slurm are unknown while Slurm does not answer, unless `needs_slurm`. For a train that `is_queued`, Slurm is
    not asked, and only what `opsctl edit` can change is checked. Raises InputError for an `allow` that is no check,
    OpsctlError if `needs_slurm` and Slurm does not answer.
    """
    allowances = find_allowances(train, allow)
    checks = [check for name, check in CHECKS.items() if not is_queued or read_table()[name].get("queued", True)]
    slurm: ClusterFacts | None = None
    unknown: dict[str, str] = {}
    try:
        slurm = None if is_queued else gather_cluster(app.slurm, spec, actor())
    except OpsctlError as refusal:
        if needs_slurm:
            raise
        unknown = {"Slurm": refusal.message}
    recipe = read_recipe(train, app.root / train.name / train.setup.directory)
    request = LaunchRequest(train=train, spec=spec, recipe=recipe)
    problems = _judge(app, request, checks, slurm, unknown)
    return sort_problems(_allow(problem, allowances.get(problem.check, "")) for problem in problems)


def _judge(
    app: App,
    request: LaunchRequest,
    checks: Sequence[Check],
    slurm: ClusterFacts | None,
    unknown: Mapping[str, str],
) -> list[Problem]:
    train, table = request.train, request.train.container
    place = LaunchPlace(
        run=RunDir(app.root / train.name),
        base=Path.cwd(),
        filesystems=app.site.filesystem,
        history=app.history.all(),
        user=actor(),
        measured=app.site_dir.path / "watch" / "fs_quota",
        runner=app.runner,
        now=app.clock.now(),
    )
    facts = gather(request, place, slurm, unknown)
    if table is None:
        return judge(checks, request, facts)
    missing = _list_mounted(facts.misplaced_paths, train, table, place.run.path)
    facts = replace(facts, misplaced_paths=missing)
    # Compute nodes may have other programs and mounts than this machine.
    of_container = [*_check_image(table), *_check_runtime(table, app.engine_runner), *_check_mounts(table)]
    return [*judge(checks, request, facts), *of_container]


def _list_mounted(
    missing: Sequence[MisplacedPath], train: TrainSettings, table: ContainerTable, run: Path
) -> tuple[MisplacedPath, ...]:
    """Return the missing files that a container would have from this machine. The image may hold all others.

    Those are files below the run directory, [setup] directory, and mounts with the same path. Setup lines run outside.
    """
    start = run / train.setup.directory
    sources = {run: run, start: start} | table.sources
    program = train.command[0] if train.command and "/" not in train.command[0] else ""
    return tuple(
        file
        for file in missing
        if file.origin != "command" or (file.path != program and _keeps_its_path(start / file.path, sources))
    )


def _keeps_its_path(path: Path, sources: Mapping[Path, Path]) -> bool:
    """Whether a path of the container is the same outside. `sources` holds the path outside of each mount."""
    place = Path(os.path.normpath(path))
    return find_outside(place, sources) == place and any(place.is_relative_to(inside) for inside in sources)


def _check_image(table: ContainerTable) -> Iterator[Problem]:
    path = Path(table.image)
    is_file = path.is_absolute() or (table.runtime != "podman" and path.suffix in {".sif", ".sqsh", ".img"})
    if not is_file:
        yield note("container.address", image=table.image)
    elif not path.is_absolute():
        yield error("container.relative", image=table.image)
    elif not path.exists():
        yield error("container.missing", image=table.image)


def _check_runtime(table: ContainerTable, runner: Runner) -> Iterator[Problem]:
    if table.runtime != "pyxis":
        if shutil.which(table.runtime) is None:
            yield note("container.no_runtime", runtime=table.runtime)
    elif why := _why_without_pyxis(runner):
        yield note("container.no_pyxis", why=why)


def _why_without_pyxis(runner: Runner) -> str:
    """Return why pyxis cannot be seen here; empty if srun offers its options."""
    try:
        done = runner.run(("srun", "--help"), timeout=SRUN_TIMEOUT_S)
    except MissingProgram:
        return "there is no srun on this machine"
    except TimedOut as refusal:
        return str(refusal)
    if "--container-image" in done.out + done.err:
        return ""
    return "srun on this machine has no --container-image" if done.code == 0 else "srun --help fails on this machine"


def _check_mounts(table: ContainerTable) -> Iterator[Problem]:
    for mount in table.mounts:
        source = mount.partition(":")[0]
        if exists(Path(source)) is False:
            yield warning("container.mount", source=source)


def _check_freeze(app: App, train: TrainSettings) -> list[Problem]:
    """Return the problem that prevents the copy of the code."""
    try:
        plan_freeze(train.setup, app.runner, root=app.root)
    except OpsctlError as refusal:
        return [error("freeze.refused", problem=refusal.message, hint=refusal.hint or "correct it")]
    return []


def _check_body(app: App, train: TrainSettings) -> list[Problem]:
    problems: Sequence[str]
    try:
        text = render_body(train, RunDir(app.root / train.name), python="python3")
    except ConfigError as refusal:
        problems = refusal.problems
    else:
        problems = syntax_problems(text, app.runner)
    return [error("body.invalid", problem=problem) for problem in problems]


def find_why_it_must_pass(check: str) -> str:
    """Return why errors of this check cannot be allowed; empty if they can."""
    return str(read_table().get(check, {}).get("must_pass", ""))


def find_allowances(train: TrainSettings, options: Sequence[str]) -> dict[str, str]:
    """Return what allows each check. Raises InputError for a check that does not exist or must pass."""
    settings = dict.fromkeys(train.preflight.allow, "[preflight] allow")
    allowances = {**settings, **dict.fromkeys(options, "--allow")}
    known = CHECKS.keys() | BEYOND_CHECKS
    for check, origin in allowances.items():
        if why := find_why_it_must_pass(check):
            raise InputError(f"{origin} {check}: this check must pass: {why}")
        if check not in known:
            near = find_near(check, known)
            raise InputError(
                f"{origin} {check}: there is no such check",
                hint=f"did you mean {near}?" if near else "opsctl preflight shows the check of each problem",
            )
    return allowances


def _allow(problem: Problem, origin: str) -> Problem:
    """Return the problem; an error that `origin` allows as a warning."""
    if not origin or problem.severity is not ProblemSeverity.ERROR:
        return problem
    return replace(problem, severity=ProblemSeverity.WARNING, allowed=origin)


def list_allowed(problems: Iterable[Problem]) -> tuple[Allowed, ...]:
    """Return the allowed errors, for the journal."""
    return tuple(
        Allowed(check=problem.check, what=problem.what, origin=problem.allowed)
        for problem in problems
        if problem.allowed
    )
