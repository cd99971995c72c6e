"""Hooks of a train: commands of its owner that opsctl runs at a checkpoint, at the end of an attempt, on a hold.

A hook has a time limit, its output goes to logs/hooks.log, and no failure of a hook changes anything else.
"""

import contextlib
import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Clock, Completed, Runner, TimedOut
from opsctl.base.secret_formats import Secrets, all_forms, find_in_environment
from opsctl.guard.end_record import Action, FinishedAttempt, Outcome
from opsctl.guard.newest_checkpoint import NewestCheckpoint, find_newest, is_other_kind
from opsctl.settings.loader import HookSettings, parse, read_toml
from opsctl.state.events import HookStarted
from opsctl.state.files import append_line
from opsctl.state.journal import Journal
from opsctl.state.lease import lease
from opsctl.state.run_dir import RunDir, check_trusted

log = logging.getLogger(__name__)

MAX_OUTPUT_CHARS = 4000
MAX_VALUE_CHARS = 20_000
"""Of one variable; the kernel takes 131,072 bytes."""
_UNFIT = re.compile(r"[\0\ud800-\udc7f\udd00-\udfff]")
LOOK_EVERY_S = 15.0
MAX_JOIN_S = 660.0
"""A little more than the longest time limit of a hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainHooks:
    run: RunDir
    journal: Journal
    runner: Runner

    @property
    def settings(self) -> HookSettings:
        """The [hooks] table of train.toml, as it is now. Raises ConfigError."""
        return parse(HookSettings, read_toml(self.run.config).get("hooks", {}), str(self.run.config))

    def after_attempts(self, finished: Sequence[FinishedAttempt]) -> None:
        """Run the hooks of attempts that were finalized now. Raises nothing."""
        for attempt in finished:
            env = {
                "TRAIN_OUTCOME": attempt.outcome.value,
                "TRAIN_ACTION": attempt.action.value,
                "TRAIN_WHY": attempt.why,
                "TRAIN_STEP": "" if attempt.highest_step is None else str(attempt.highest_step),
            }
            names = ["on_attempt_end"]
            names += ["on_held"] if attempt.action is Action.HOLD_QUEUED else []
            names += ["on_finished"] if attempt.outcome is Outcome.FINISHED else []
            for name in names:
                self.call(name, attempt.attempt, env)

    def at_checkpoint(self, attempt: str, path: str, step: int | None) -> None:
        """Run the hook of a new checkpoint. Raises nothing."""
        env = {"TRAIN_CHECKPOINT": path, "TRAIN_STEP": "" if step is None else str(step)}
        self.call("on_checkpoint", attempt, env, subject=path)

    def call(self, name: str, attempt: str, env: Mapping[str, str], subject: str = "") -> None:
        """Run one hook, once for each attempt and subject. Raises nothing."""
        try:
            settings = self.settings
            command = str(getattr(settings, name))
            if not command:
                return
            # Whoever could replace the run directory would own the new one, so that its parents need no check.
            check_trusted([self.run.config], root=self.run.path)
            if not self._claim(name, attempt, subject):
                return
            variables = {"TRAIN_NAME": self.run.name, "TRAIN_ATTEMPT": attempt, "TRAIN_RUN_DIR": str(self.run.path)}
            argv = ("bash", "-c", command)
            # Words of logs may hold what no variable can: a NUL, half a character, more than the kernel takes.
            variables |= {key: _UNFIT.sub("", value)[:MAX_VALUE_CHARS] for key, value in env.items()}
            try:
                done = self.runner.run(argv, timeout=settings.timeout_seconds, env=variables)
                result = f"exit code {done.code}"
            except TimedOut as error:
                done, result = Completed(argv=argv, code=-1, out="", err=""), str(error)
            log.info("hook %s of %s: %s", name, attempt, result)
            self._write(f"{name} of {attempt}: {result}", done)
        except Exception:
            log.warning("hook %s of %s failed", name, attempt, exc_info=True)

    def has(self, name: str) -> bool:
        """Whether the hook is set. Raises nothing."""
        try:
            return bool(getattr(self.settings, name))
        except OpsctlError:
            return False

    def _claim(self, name: str, attempt: str, subject: str) -> bool:
        """Journal the start of a hook; return False if the hook was started before, also by another process."""
        with lease(self.run.path, self.journal.clock):
            started = [event for event in self.journal.events() if isinstance(event, HookStarted)]
            if (name, attempt, subject) in {(event.hook, event.attempt, event.subject) for event in started}:
                return False
            self.journal.append(HookStarted(hook=name, attempt=attempt, subject=subject))
            return True

    def _write(self, head: str, done: Completed) -> None:
        known = Secrets(passing=all_forms(find_in_environment(os.environ)))
        text = known.strike_text((done.out + done.err)[-2 * MAX_OUTPUT_CHARS :])[-MAX_OUTPUT_CHARS:]
        output = "".join(f"  {line}\n" for line in text.splitlines())
        text = f"{self.journal.clock.now():%Y-%m-%d %H:%M:%S} UTC {head}\n{output}"
        with contextlib.suppress(OSError, OpsctlError):
            append_line(self.run.logs / "hooks.log", text.encode(errors="replace"))


@dataclass(slots=True)
class CheckpointHook:
    """Runs on_checkpoint for the newest checkpoint of one attempt, beside the supervision, one hook at a time."""

    hooks: TrainHooks
    attempt: str
    clock: Clock
    newest: int = -1
    """The mark of the newest checkpoint that is known already."""
    _next_look_s: float = 0.0
    _growing: NewestCheckpoint | None = None
    """A checkpoint that may still be written: complete once it has not changed between two looks."""
    _thread: threading.Thread | None = None

    def look(self, *, is_last: bool = False) -> None:
        """Start the hook if there is a new checkpoint. `is_last` looks at once."""
        now_s = self.clock.monotonic()
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or (now_s < self._next_look_s and not is_last):
            return
        self._next_look_s = now_s + LOOK_EVERY_S
        if not self.hooks.has("on_checkpoint"):
            return
        found = find_newest(self.hooks.run)
        if found is None or not (found.mark > self.newest or is_other_kind(found.mark, self.newest)):
            return
        if not (found.is_complete or is_last or found == self._growing):
            self._growing = found
            return
        self.newest = found.mark
        arguments = (self.attempt, str(found.path), found.step)
        self._thread = threading.Thread(target=self.hooks.at_checkpoint, args=arguments, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Run the hook of a last checkpoint, and wait for it: the end of the job would end the hook."""
        self.join()
        self.look(is_last=True)
        self.join()

    def join(self) -> None:
        """Wait for the hook that runs, if any."""
        if self._thread:
            self._thread.join(MAX_JOIN_S)
