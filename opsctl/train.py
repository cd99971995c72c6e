"""The Python API: one train, with a method for each command.

The methods call the code of the commands. They print nothing, install no signal handlers and never exit; errors are
those of opsctl.errors. A warning is a log record of the logger `opsctl.train`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl import app as composition
from opsctl.actions.owner_actions import reconcile_own_train
from opsctl.actions.prepare_launch import LaunchOptions, prepare_train
from opsctl.actions.steer_train import Released, SwitchResult, arm_switch, hold_train, release_train, submit
from opsctl.base.errors import ConfigError, InputError, WaitTimedOut
from opsctl.base.model import LaunchPlan
from opsctl.launch.submit import Launch, SubmittedArray
from opsctl.launch.train_paths import load_resolved
from opsctl.settings.loader import TrainSettings, find_trainer_problems, parse
from opsctl.settings.write_toml import dump_toml
from opsctl.state.reasons import as_written
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Switch
from opsctl.trainer.sample_order import check_range

if TYPE_CHECKING:
    from opsctl.actions.rollback import RollbackResult
    from opsctl.diagnosis.root_cause import Diagnosis
    from opsctl.monitor.status import TrainStatus
    from opsctl.report.contents import Report

log = logging.getLogger(__name__)
StrPath = str | os.PathLike[str]
PENDING_STATES = frozenset({"running", "queued", "unknown"})
"""States of a train that a wait outlasts."""


class Train:
    """A training run: its settings, and the run directory after the first launch.

    `Train(...)` and `Train.from_toml(...)` make a train to launch; `Train.find(...)` opens a launched one.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[StrPath | int | float],
        nodes: int,
        time_limit: str,
        processes_per_node: int = 1,
        gpus_per_node: int = 0,
        tasks: int = 10,
        environment: Mapping[str, StrPath | int | float] | None = None,
        slurm: dict[str, Any] | None = None,
        site: StrPath | None = None,
        **tables: Any,
    ) -> None:
        """Describe a train that runs `command` once per process.

        Paths become texts everywhere, numbers in `command` and `environment`. `slurm` holds further settings of
        [slurm]; other keywords are tables of TRAIN.toml, such as `setup={"directory": "/home/me/code"}` or
        `guard={"short_attempts": 5}`. `site` is a site.toml; None: the one that `opsctl` finds. Raises ConfigError with
        every problem.
        """
        resources = {
            "nodes": nodes,
            "time_limit": time_limit,
            "processes_per_node": processes_per_node,
            "gpus_per_node": gpus_per_node,
            "tasks": tasks,
            **(slurm or {}),
        }
        where = f"Train({name!r})"
        if isinstance(command, str | os.PathLike):
            raise ConfigError(
                where, [f"command: {str(command)!r:.80} is one text, not a list of the program and its arguments"]
            )
        words = [_number_to_text(word) for word in command]
        variables = {key: _number_to_text(value) for key, value in (environment or {}).items()}
        fields = {"name": name, "command": words, "environment": variables or None, **tables, "slurm": resources}
        settings = {key: _to_plain(value) for key, value in fields.items() if value is not None}
        try:
            config = dump_toml(settings)
        except ValueError as error:
            raise ConfigError(where, [str(error)]) from error
        parsed = parse(TrainSettings, settings, where, extra=find_trainer_problems(settings))
        self._set(name, site, settings=parsed, config=config, where=where)

    def _set(self, name: str, site: StrPath | None, *, settings: TrainSettings, config: str, where: str) -> None:
        self.name = name
        """The name of the train, of its run directory and of its jobs."""
        self.settings = settings
        """The settings, as opsctl parsed them."""
        self.config = config
        """The text of TRAIN.toml."""
        self._site = Path(site).absolute() if site else None
        self._where = where
        self._path = ""
        self._file: Path | None = None

    @classmethod
    def from_toml(cls, path: StrPath, *, site: StrPath | None = None) -> Train:
        """Return the train that a TRAIN.toml describes. Raises ConfigError with every problem."""
        file = Path(path)
        settings = load_resolved(file)
        train = cls.__new__(cls)
        train._set(settings.name, site, settings=settings, config=file.read_text(encoding="utf-8"), where=str(file))
        train._file = file
        return train

    @classmethod
    def find(cls, train: str, *, site: StrPath | None = None) -> Train:
        """Return a launched train, by its name or its run directory. Raises InputError."""
        run = composition.build(Path(site) if site else None).find(train)
        opened = cls.from_toml(run.config, site=site)
        opened._path = str(run.path)
        return opened

    def __repr__(self) -> str:
        return f"Train({self.name!r})"

    @cached_property
    def _app(self) -> composition.App:
        return composition.build(self._site)

    @property
    def run_dir(self) -> Path:
        """The run directory, which the first launch makes."""
        return Path(self._path) if self._path else self._app.root / self.name

    def _run(self) -> RunDir:
        """Return the run directory of a launched train. Raises InputError before the first launch."""
        return self._app.find(str(self.run_dir))

    # --- run

    def plan(
        self,
        *,
        tasks: int | None = None,
        exclude: str = "",
        after: str = "",
        nice: int | None = None,
        allow: Sequence[str] = (),
    ) -> LaunchPlan:
        """Check the train and return the submission that `launch` would make, without changing anything.

        Raises as `launch` does.
        """
        options = LaunchOptions(tasks=tasks, exclude=exclude, after=after, nice=nice, allow=tuple(allow))
        return self._prepare(options).plan

    def launch(
        self,
        *,
        tasks: int | None = None,
        exclude: str = "",
        after: str = "",
        nice: int | None = None,
        allow: Sequence[str] = (),
    ) -> SubmittedArray:
        """Check, render and submit the train: `opsctl launch`. `allow` names checks whose errors become warnings.

        Raises ConfigError with every problem that preflight finds, InputError if the train is queued or a switch is
        armed, Unreachable if Slurm did not answer: call `launch` again, which looks in the queue before it submits.
        """
        options = LaunchOptions(tasks=tasks, exclude=exclude, after=after, nice=nice, allow=tuple(allow))
        return submit(self._app, self._prepare(options))

    def _prepare(self, options: LaunchOptions) -> Launch:
        if self._file:
            self._app.check_settings(self._file)
        return prepare_train(
            self._app, self.settings, self.config, options, where=self._where, warn=lambda text: log.warning("%s", text)
        )

    def hold(self, reason: str = "") -> list[str]:
        """Hold the queued tasks and return their arrays: `opsctl hold`. The running task goes on.

        If the job belongs to another user, the pause switch is armed instead, and the list is empty. Raises InputError
        if nothing is queued, and while a rollback runs.
        """
        return hold_train(self._app, self._run(), reason, show=log.info).arrays

    def release(self, *, exclude: str = "", reason: str = "") -> Released | None:
        """Release the queued tasks and disarm the pause switch: `opsctl release`.

        `exclude` names nodes to exclude as well. If the job belongs to another user, a request is left for the owner,
        and the result is None. Raises InputError if nothing is queued, and while a rollback runs or waits to be
        finished.
        """
        result = release_train(self._app, self._run(), exclude, why=reason, show=log.info)
        if result.data["done"] == "request":
            return None
        return Released(arrays=result.arrays, excluded=str(result.data["excluded"]))

    def cancel(self, reason: str = "cancelled from Python") -> list[str]:
        """Cancel the queued and the running tasks, without time to save, and return the arrays: `opsctl cancel`.

        `kill` gives the trainer time to save. Raises NotAllowed if the job belongs to another user.
        """
        return self._app.arrays(self._reconciled()).cancel(as_written(reason))

    def kill(self, reason: str) -> SwitchResult:
        """Arm the kill switch: `opsctl kill-switch arm`.

        The running task is asked to save and stop, then signalled and ended; the queue is cancelled, at once if the
        job is yours and Slurm answers. The result holds the steps that were applied, and what will happen as a text.
        """
        return arm_switch(self._app, self._run(), Switch.KILL, reason)

    def pause(self, reason: str) -> SwitchResult:
        """Arm the pause switch: `opsctl kill-switch arm --pause`.

        The running task is asked to save and stop, then signalled and ended; the queue is held, as in `kill`.
        """
        return arm_switch(self._app, self._run(), Switch.PAUSE, reason)

    def save(self, reason: str = "") -> SwitchResult:
        """Ask the trainer to save a checkpoint and go on: `opsctl save-switch`.

        Raises InputError if no task is running or queued.
        """
        return arm_switch(self._app, self._run(), Switch.SAVE, reason)

    def rollback(
        self,
        to: int | None = None,
        *,
        skip_samples: Sequence[str] = (),
        lr_scale: float | None = None,
        allow: Sequence[str] = (),
        timeout_s: float = 1800,
    ) -> RollbackResult:
        """Go back to the checkpoint of a step: `opsctl rollback`. `to` None: before the open alert about the loss.

        Raises WaitTimedOut if the running task has not stopped after `timeout_s` seconds: call again.
        """
        from opsctl.actions.rollback import plan_and_roll_back  # noqa: PLC0415 (slow import: rollback only)
        from opsctl.actions.rollback_plan import RollbackOptions  # noqa: PLC0415 (as above)

        try:
            skipped = tuple(map(check_range, skip_samples))
        except ValueError as error:
            raise InputError(str(error)) from error
        options = RollbackOptions(to=to, skip_samples=skipped, lr_scale=lr_scale, allow=tuple(allow))
        timeout = timedelta(seconds=timeout_s)
        return plan_and_roll_back(self._app, self._run(), options, timeout, show=log.info)[1]

    def undo_rollback(self, *, timeout_s: float = 1800) -> RollbackResult:
        """Take the newest rollback back: `opsctl rollback --undo`. Raises as `rollback`."""
        from opsctl.actions.rollback import plan_undo, undo  # noqa: PLC0415 (slow import: rollback only)

        run = self._run()
        return undo(self._app, run, plan_undo(self._app, run), timedelta(seconds=timeout_s), show=log.info)

    def _reconciled(self) -> RunDir:
        run = self._run()
        reconcile_own_train(self._app, run, show=log.info)
        return run

    # --- observe

    def status(self) -> TrainStatus:
        """Return state, progress, queue, switches and alerts: `opsctl status --json`.

        If Slurm does not answer, `state` is `unknown` and `slurm` says why; nothing is raised.
        """
        from opsctl.actions.find_statuses import find_statuses  # noqa: PLC0415 (slow import: status only)

        (status,) = find_statuses(self._app, [self._run()], is_named=True, show=log.info)
        return status

    def wait(self, timeout_s: float | None = None, *, poll_s: float = 10) -> TrainStatus:
        """Wait until no task is running or queued to run, and return the status: finished, ended or held.

        While Slurm does not answer, the wait goes on. Raises WaitTimedOut after `timeout_s` seconds; None: no limit.
        """
        clock = self._app.clock
        deadline_s = None if timeout_s is None else clock.monotonic() + timeout_s
        while True:
            status = self.status()
            if status.state == "unknown" and not status.slurm:
                self._reconciled()  # an attempt has ended without a guard that finalizes it
                status = self.status()
            if status.state not in PENDING_STATES:
                return status
            left_s = poll_s if deadline_s is None else deadline_s - clock.monotonic()
            if left_s <= 0:
                raise WaitTimedOut(f"{self.name}: still {status.state} after {timeout_s:g} s")
            clock.sleep(min(poll_s, left_s))

    def logs(
        self, lines: int | None = 50, *, task: int | None = None, rank: int | None = None, node: str | None = None
    ) -> str:
        """Return the last `lines` of the log; None: all. `opsctl logs`. Empty before the first line.

        With `task`, `rank` or `node`: the logs of these ranks, of the most recent attempt.
        """
        from opsctl.telemetry.logs.train_logs import open_logs  # noqa: PLC0415 (logs only)

        run = self._run()
        journal = self._app.journal(run)
        source = open_logs(run, journal, task=task, rank=rank, node=node, with_prefix=rank is None)
        return "\n".join(line.decode(errors="replace") for line in (*source.tail(lines), *source.rest()))

    # --- diagnose

    def why(self, task: int | None = None) -> Diagnosis:
        """Diagnose the most recent ended attempt, or that of an array task: `opsctl why`.

        Raises InputError if no attempt has ended.
        """
        from opsctl.actions.diagnose_train import diagnose_train  # noqa: PLC0415 (slow import: why only)

        return diagnose_train(self._app, self._run(), task)

    def report(self, since: datetime | None = None, until: datetime | None = None) -> Report:
        """Account for every lost hour by cause: `opsctl report`. `since` and `until` bound the report."""
        from opsctl.actions.build_report import build_train_report  # noqa: PLC0415 (slow import: report only)
        from opsctl.report.contents import ReportPeriod  # noqa: PLC0415 (as above)

        for name, bound in (("since", since), ("until", until)):
            if bound is not None and bound.tzinfo is None:
                raise InputError(f"{name}: a time without a time zone", hint="datetime(..., tzinfo=UTC)")
        return build_train_report(self._app, self._run(), None, ReportPeriod(since=since, until=until))


def _number_to_text(word: object) -> object:
    """Return a number as the text that a program would get; everything else as it is."""
    return str(word) if isinstance(word, int | float) and not isinstance(word, bool) else word


def _to_plain(value: object) -> object:
    """Return a setting with its paths as texts, also within tables and lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    return [_to_plain(item) for item in value] if isinstance(value, list | tuple) else value
