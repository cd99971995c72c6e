"""The one snapshot that all screens of `opsctl top` show, and the commands that its keys run."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.actions.find_statuses import find_statuses
from opsctl.alerts.ledger_files import OpenAlert, open_alerts
from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.base.ports import TimedOut
from opsctl.cli.output import cell
from opsctl.monitor.status import TrainStatus
from opsctl.state.run_dir import all_trains
from opsctl.telemetry.logs.train_logs import TrainLog

log = logging.getLogger(__name__)

COMMAND_TIMEOUT_S = 120.0
LOG_LINES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainsPage:
    """What one refresh found."""

    at: datetime
    queue_at: datetime | None = None
    """The time of the list of the queue."""
    statuses: tuple[TrainStatus, ...] = ()
    alerts: tuple[OpenAlert, ...] = ()
    problem: str = ""
    """Why nothing could be read."""

    def find(self, train: str) -> TrainStatus | None:
        """Return the status of a train; None if there is no such train any more."""
        return next((status for status in self.statuses if status.train == train), None)


@dataclass(frozen=True, slots=True)
class TrainsFeed:
    """Reads pages and logs, and runs commands. Its functions block: the screens call them in threads."""

    app: App

    def read(self) -> TrainsPage:
        """Read all trains with one question to Slurm. Changes nothing."""
        now = self.app.clock.now()
        try:
            statuses = find_statuses(self.app, all_trains(self.app.root), is_named=False, show=log.info, acts=False)
        except OpsctlError as error:
            return TrainsPage(at=now, problem=error.message)
        alerts = open_alerts(self.app.alert_ledger, self.app.clock.now())
        queue_at = self.app.shared_queue.at
        return TrainsPage(at=self.app.clock.now(), queue_at=queue_at, statuses=tuple(statuses), alerts=tuple(alerts))

    def begin_log(self, train: str) -> tuple[TrainLog | None, list[str]]:
        """Return the log of a train and its last lines; None and the reason if the log cannot be read."""
        try:
            source = TrainLog(self.app.find(train))
            return source, [_to_text(line) for line in source.tail(LOG_LINES)]
        except (OpsctlError, OSError) as error:
            return None, [str(error)]

    def follow_log(self, source: TrainLog) -> list[str]:
        """Return the lines since the last call."""
        try:
            return [_to_text(line) for line in source.read()]
        except (OpsctlError, OSError) as error:
            log.info("the log cannot be read: %s", error)
            return []

    def run(self, words: Sequence[str]) -> tuple[bool, str]:
        """Run a command of opsctl; return whether it succeeded, and what it printed."""
        try:
            done = self.app.runner.run([*self.app.program, *words], timeout=COMMAND_TIMEOUT_S, env={"NO_COLOR": "1"})
        except (OpsctlError, TimedOut) as error:
            return False, str(error)
        self.app.shared_queue.forget()
        text = "\n".join(part.strip("\n") for part in (done.out, done.err) if part.strip())
        return done.code == 0, cell(text or f"The command ended with exit code {done.code} and printed nothing.").plain


def _to_text(line: bytes) -> str:
    return cell(line.decode(errors="replace")).plain
