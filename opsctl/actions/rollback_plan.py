"""Plan a rollback: choose a verified checkpoint, render the settings, run preflight. Changes nothing."""

import json
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.actions.check_train import list_allowed, list_problems
from opsctl.actions.prepare_launch import refuse_errors, show_warnings
from opsctl.app import App
from opsctl.base.errors import ConfigError, InputError, OpsctlError, RunDirError
from opsctl.base.findings import Severity
from opsctl.base.tables import parse_toml
from opsctl.checkpoints.catalog import describe_doubt
from opsctl.checkpoints.newer_checkpoints import (
    Pointer,
    find_copies_of_newest,
    find_newer,
    find_pointer,
)
from opsctl.checkpoints.scan import FoundCheckpoint, list_checkpoints_in
from opsctl.launch import launch_plan as planning
from opsctl.launch.revisions import Files, read_files
from opsctl.launch.rollback_state import FINAL, UNDO, RollbackPhase, RollbackRecord, read_newest, to_record
from opsctl.launch.train_paths import match_paths, resolve_paths
from opsctl.settings.loader import TrainSettings, find_trainer_problems, load_train, parse
from opsctl.settings.rollback import RollbackSettings, fill
from opsctl.settings.write_toml import set_keys
from opsctl.state.events import Allowed
from opsctl.state.files import is_regular
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch, read
from opsctl.telemetry.progress.signs import find_all_directories, find_working_directory
from opsctl.trainer.manifest import read_manifest

EMBEDDED = "opsctl"
"""The layout of the embedded trainer, whose manifest holds the hash of every file."""
MAX_NAMED = 6
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackOptions:
    """What the user asks for."""

    to: int | None = None
    """The step; None: the newest verified checkpoint before the open alert about the loss."""
    skip_samples: tuple[str, ...] = ()
    lr_scale: float | None = None
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """A rollback that is ready to be carried out."""

    run: RunDir
    record: RollbackRecord
    chosen: FoundCheckpoint
    evidence: str
    """How the checkpoint was verified."""
    newer: tuple[Path, ...]
    """Paths to set aside, as far as they exist now: the running task saves once more."""
    pointer: Pointer | None
    files: Files
    allowed: tuple[Allowed, ...] = ()
    next_sample: int | None = None
    """The first sample, counted from 0, that is read again; None for a foreign trainer."""

    @property
    def is_done(self) -> bool:
        """Whether an earlier call has carried out this rollback, and nothing newer was saved since."""
        return self.record.phase is RollbackPhase.DONE


def check_may_roll_back(app: App, run: RunDir) -> RollbackRecord | None:
    """Return the newest rollback. Raises RunDirError and InputError if the train cannot be rolled back now."""
    if not run.is_ours:
        raise RunDirError(f"{run.path}: belongs to another user; only the owner can roll the train back")
    app.check_trusted(run)
    if armed := read(run, Switch.KILL):
        raise InputError(f"{run.name}: {armed.by} armed the kill switch", hint=f"opsctl kill-switch disarm {run.name}")
    try:
        return read_newest(run)
    except (OSError, ValueError) as error:
        raise RunDirError(f"{run.name}: the record of the last rollback cannot be read: {error}") from error


def plan_rollback(app: App, run: RunDir, options: RollbackOptions, *, show: Show) -> RollbackPlan:
    """Return the plan. Raises InputError, ConfigError and RunDirError; calls `show` with warnings."""
    record = check_may_roll_back(app, run)
    train = load_train(run.config, layout=False)
    found = list_checkpoints_in(find_all_directories(run, train))
    planner = _Planner(app=app, run=run, train=train, found=found, options=options, show=show)
    if record and record.phase in UNDO - FINAL:
        raise InputError(f"{run.name}: an undo was interrupted", hint=f"opsctl rollback {run.name} --undo finishes it")
    if record and record.phase not in FINAL:
        return planner.go_on(record)
    if record and record.phase is RollbackPhase.DONE and planner.is_repeated(record):
        return planner.assemble(record, "verified before")
    return planner.begin(record.number + 1 if record else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    """Plans one rollback of one train."""

    app: App
    run: RunDir
    train: TrainSettings
    found: Sequence[FoundCheckpoint]
    """The checkpoints of the train, the highest step first."""
    options: RollbackOptions
    show: Show

    def begin(self, number: int) -> RollbackPlan:
        run, table, options = self.run, self.train.rollback, self.options
        _check_arguments(run, table, options)
        chosen, evidence = _choose(self.app, run, self.found, options.to, self.show)
        _check_copies(run, table, self.found, chosen)
        paths = (chosen.path, *find_newer(self.found, chosen))
        record = to_record(
            table,
            number=number,
            step=chosen.step,
            checkpoint=str(chosen.path),
            directories=tuple(dict.fromkeys(str(path.parent) for path in paths)),
            skip_samples=tuple(dict.fromkeys((*table.skip_samples, *options.skip_samples))),
            lr_scale=table.lr_scale if options.lr_scale is None else options.lr_scale,
        )
        return self.assemble(record, evidence)

    def go_on(self, record: RollbackRecord) -> RollbackPlan:
        """Return the plan of an interrupted rollback. Raises InputError if the user now asks for another one."""
        if not self._asks_for(record):
            raise InputError(
                f"{self.run.name}: a rollback to step {record.step} was interrupted",
                hint=f"opsctl rollback {self.run.name} finishes it,"
                f" opsctl rollback {self.run.name} --undo takes it back",
            )
        self.show(f"{self.run.name}: goes on with the interrupted rollback to step {record.step}")
        return self.assemble(record, "verified before the interruption")

    def is_repeated(self, record: RollbackRecord) -> bool:
        """Whether the user asks again for the rollback that was done last, and no checkpoint was saved since."""
        newest = max((checkpoint.step for checkpoint in self.found if checkpoint.step is not None), default=None)
        return newest == record.step and self._asks_for(record)

    def _asks_for(self, record: RollbackRecord) -> bool:
        options = self.options
        is_same_step = options.to in {None, record.step}
        is_same_scale = options.lr_scale in {None, record.lr_scale}
        return is_same_step and is_same_scale and set(options.skip_samples) <= set(record.skip_samples)

    def assemble(self, record: RollbackRecord, evidence: str) -> RollbackPlan:
        """Return the plan of `record`. Raises ConfigError with every error of preflight, RunDirError."""
        run = self.run
        chosen = next((checkpoint for checkpoint in self.found if str(checkpoint.path) == record.checkpoint), None)
        if chosen is None:
            hint = f"opsctl rollback {run.name} --undo"
            raise RunDirError(f"{run.name}: the checkpoint {record.checkpoint} is gone", hint=hint)
        files = render_files(run, record.keys(before=False))
        is_begun = record.phase is RollbackPhase.BEGUN
        table = parse(TrainSettings, parse_toml(files.config), str(run.config)).rollback
        text = " ".join(fill(table.newest_text, table.step_values()))
        return RollbackPlan(
            run=run,
            record=record,
            chosen=chosen,
            evidence=evidence,
            newer=tuple(find_newer(self.found, chosen)),
            pointer=find_pointer(chosen, file=table.newest_file, text=text),
            files=files,
            next_sample=_read_next_sample(chosen),
            allowed=_run_preflight(self.app, run, files, self.options.allow, self.show) if is_begun else (),
        )


def render_files(run: RunDir, keys: dict[str, object]) -> Files:
    """Return the files of the train with other keys in [rollback]. Raises ConfigError."""
    files = read_files(run)
    assert files is not None  # app.find() found train.toml
    try:
        text = set_keys(files.config, "rollback", keys)
    except ValueError as error:
        raise ConfigError(str(run.config), [str(error)]) from error
    fields = parse_toml(text)
    train = parse(TrainSettings, fields, str(run.config), extra=find_trainer_problems(fields, layout=False))
    trainer = planning.dump_trainer(json.loads(files.trainer), train) if files.trainer else ""
    return replace(files, config=text, trainer=trainer)


def _run_preflight(app: App, run: RunDir, files: Files, allow: Sequence[str], show: Show) -> tuple[Allowed, ...]:
    """Check what the next task will run, as `opsctl edit` does. Raises ConfigError with every error."""
    train = parse(TrainSettings, parse_toml(files.config), str(run.config))
    if files.trainer:
        train = resolve_paths(train, run.path, known=match_paths(train, json.loads(files.trainer)))
    if train.setup.freeze != "none":  # the task runs the copy: the code may have changed since
        directory = find_working_directory(run, train)
        train = train.model_copy(update={"setup": train.setup.model_copy(update={"directory": str(directory)})})
    problems = list_problems(app, train, planning.job_spec(train, app.site), allow=allow, is_queued=True)
    refuse_errors(str(run.config), problems, [])
    show_warnings(run.name, problems, show)
    return list_allowed(problems)


def _check_arguments(run: RunDir, table: RollbackSettings, options: RollbackOptions) -> None:
    """Refuse options that no setting translates for a foreign trainer."""
    if is_regular(run.trainer_config):
        return
    wanted = (
        ("skip_samples_argument", "--skip-samples", options.skip_samples),
        ("lr_scale_argument", "--lr-scale", options.lr_scale),
    )
    for key, option, value in wanted:
        if value and not getattr(table, key):
            raise InputError(
                f"{run.name}: {option}: [rollback] {key} is not set, so opsctl cannot tell the trainer",
                hint=f"set {key} by opsctl edit: opsctl config reference shows the placeholders",
            )


def _check_copies(
    run: RunDir, table: RollbackSettings, found: Sequence[FoundCheckpoint], chosen: FoundCheckpoint
) -> None:
    """Refuse a trainer that keeps its newest state under a name without a step, unless it can be told the step."""
    copies = find_copies_of_newest(found, chosen)
    if copies and not table.step_argument:
        raise InputError(
            f"{run.name}: {copies[0]} holds a newer state and has no step in its name: the trainer may resume"
            " from this state",
            hint="set [rollback] step_argument by opsctl edit, such as '--ckpt_path {checkpoint}'",
        )


def _choose(
    app: App, run: RunDir, found: Sequence[FoundCheckpoint], to: int | None, show: Show
) -> tuple[FoundCheckpoint, str]:
    """Return the checkpoint to roll back to, and how it was verified. Raises InputError."""
    if to is not None:
        return _verify_step(run, found, to, show)
    before = _find_open_trouble(app, run)
    if before is None:
        raise InputError(
            f"{run.name}: no alert about the loss is open, so --to must name the step; {_list_steps(found)}",
            hint=f"opsctl rollback {run.name} --to STEP --dry-run",
        )
    for checkpoint in found:
        if checkpoint.is_complete and checkpoint.step is not None and checkpoint.step < before:
            if not (doubt := _find_doubt(checkpoint, show)):
                return checkpoint, _describe_evidence(checkpoint)
            show(f"{run.name}: not to step {checkpoint.step}: {doubt}")
    raise InputError(f"{run.name}: no verified checkpoint before step {before}; {_list_steps(found)}")


def _verify_step(run: RunDir, found: Sequence[FoundCheckpoint], step: int, show: Show) -> tuple[FoundCheckpoint, str]:
    same = [checkpoint for checkpoint in found if checkpoint.step == step]
    if not same:
        raise InputError(f"{run.name}: no checkpoint of step {step}; {_list_steps(found, near=step)}")
    chosen = next((checkpoint for checkpoint in same if checkpoint.is_complete), same[0])
    doubt = chosen.reason if chosen.is_partial else _find_doubt(chosen, show)
    if doubt:
        earlier = [checkpoint for checkpoint in found if checkpoint.step is not None and checkpoint.step < step]
        raise InputError(f"{run.name}: checkpoint {chosen.path.name} is not good: {doubt}; {_list_steps(earlier)}")
    if not chosen.is_complete:
        show(f"{run.name}: warning: nothing shows whether {chosen.path} is complete: {chosen.reason}")
    return chosen, _describe_evidence(chosen)


def _find_doubt(checkpoint: FoundCheckpoint, show: Show) -> str:
    try:
        owner = checkpoint.path.stat().st_uid
    except OSError as error:
        return str(error.strerror)
    if owner != os.geteuid():
        return f"it belongs to uid {owner}, and the trainer would load it as you"
    if checkpoint.layout != EMBEDDED:
        return ""
    show(f"verifying {checkpoint.path.name}")
    return describe_doubt(checkpoint.path)


def _read_next_sample(checkpoint: FoundCheckpoint) -> int | None:
    if checkpoint.layout != EMBEDDED:
        return None
    try:
        return read_manifest(checkpoint.path).consumed_samples
    except (OSError, ValueError):
        return None  # its verification reports the problem


def _describe_evidence(checkpoint: FoundCheckpoint) -> str:
    return "the hash of every file is right" if checkpoint.layout == EMBEDDED else checkpoint.reason


def _list_steps(found: Sequence[FoundCheckpoint], *, near: int | None = None) -> str:
    """Return the newest steps with a usable checkpoint, or those around the step `near`."""
    steps = sorted(
        {checkpoint.step for checkpoint in found if checkpoint.step is not None and not checkpoint.is_partial}
    )
    last = len(steps) - MAX_NAMED
    first = max(0, last if near is None else min(last, bisect_left(steps, near) - MAX_NAMED // 2))
    named = ", ".join(map(str, steps[first : first + MAX_NAMED]))
    before, after = "... " * (first > 0), " ..." * (first < last)
    return f"checkpoints exist of steps {before}{named}{after}" if steps else "no checkpoint exists"


def _find_open_trouble(app: App, run: RunDir) -> int | None:
    """Return the first step in trouble by the open alerts about the loss of the train; None without an open alert."""
    try:
        entries = app.alerting.ledger.read().entries.values()
    except (OpsctlError, OSError, ValueError):
        return None
    findings = [
        entry.finding
        for entry in entries
        if entry.finding
        and entry.severity in {Severity.WARNING, Severity.CRITICAL}
        and f"{entry.key}/".startswith(f"loss/{run.name}/")
    ]
    steps = [finding.since_step for finding in findings if finding.since_step is not None]
    return min(steps, default=None)
