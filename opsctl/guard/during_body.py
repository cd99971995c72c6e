"""What the guard does beside the body, once the ranks train: their start needs the CPUs, the disk and the network.

The thread has the lowest priority, and so have the programs that it starts.
"""

import importlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Clock, Runner
from opsctl.guard import reproduction
from opsctl.guard.attempt_record import read_start
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.telemetry.progress.signs import read_log_signs
from opsctl.telemetry.progress.train_settings import read_step_pattern

log = logging.getLogger(__name__)
MAX_WAIT_S = 60.0
"""A trainer whose steps are not known is waited for no longer."""
LOOK_EVERY_S = 1.0
LOWEST_PRIORITY = 19
NEEDED_AT_THE_END = (
    "psutil",
    "opsctl.guard.finalize",
    "opsctl.guard.hooks",
    "opsctl.guard.node_care",
    "opsctl.watchdogs.failures",
)
"""Imported while the ranks train: at the end of the attempt, the next task waits."""


@dataclass(slots=True, kw_only=True)
class DuringBody:
    """The work beside the body of one attempt, in a thread of its own."""

    run: RunDir
    attempt: Attempt
    runner: Runner
    env: Mapping[str, str]
    """The environment of the batch job."""
    clock: Clock
    send_alerts: Callable[[], None] = lambda: None
    has_news: bool = False
    """Whether an earlier attempt was finalized, such as one whose node died, and nobody was alerted yet."""
    is_over: bool = False
    """Set when the body has ended."""

    def work(self) -> None:
        """Record what runs; after the first step, send alerts, import what the end needs, record packages and code.

        Raises OSError and OpsctlError.
        """
        reproduction.dump_environment(self.run, self.attempt, self.env)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        self._await_first_step()
        self.send_news()
        for module in NEEDED_AT_THE_END:
            if not self.is_over:
                importlib.import_module(module)
        reproduction.dump_code(self.run, self.attempt, self.runner, self.env, is_over=lambda: self.is_over)

    def send_news(self) -> None:
        """Send the alerts about earlier attempts in a thread of their own: a channel may take long to answer."""
        if self.has_news and not self.is_over:  # at the end of the body, the guard sends them
            self.has_news = False
            threading.Thread(target=self.send_alerts, daemon=True).start()

    def finish(self) -> None:
        """End the work. An attempt without a first step gets the record that needs files only. Never raises."""
        self.is_over = True
        try:
            reproduction.dump_code_from_files(self.run, self.attempt, self.env)
        except (OSError, OpsctlError) as error:
            log.warning("recording packages and code: %s", error)

    def _await_first_step(self) -> None:
        """Wait until the log shows a step of this attempt, the body has ended, or MAX_WAIT_S are over."""
        until_s = self.clock.monotonic() + MAX_WAIT_S
        start, pattern = read_start(self.attempt), read_step_pattern(self.run)
        offset = start.main_log if start else 0
        while not self.is_over and self.clock.monotonic() < until_s:
            self.clock.sleep(LOOK_EVERY_S)
            if read_log_signs(self.run.main_log, offset, pattern).steps:
                return
