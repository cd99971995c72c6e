"""Configure logging: the form of a record, the mask of secrets, the terminal.

Modules log with `logging.getLogger(__name__)`. Records go to stderr, never to stdout, and to the debug log of the site
(state/debug_log.py). A log that cannot be written costs the log only: no handler raises.
"""

import contextlib
import logging
import os
import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opsctl.base.secret_formats import Secrets

ROOT = "opsctl"
COMPONENTS = {"host": "command", "monitor": "watch", "state": "journal", "watchdogs": "watch"}
"""The component of packages that are not named like their component."""
MAX_RECORD_CHARS = 16_384
"""A longer record is cut."""
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))} | {10: "\n    "}
"""Control characters are shown, not sent: messages hold text of strangers. Further lines are indented, so that no
message looks like two records."""


def component_of(logger: str) -> str:
    """Return the component for the name of a logger: `guard` for `opsctl.guard.supervisor`."""
    package = logger.removeprefix(f"{ROOT}.").partition(".")[0]
    return COMPONENTS.get(package, package)


class RecordFormatter(logging.Formatter):
    """`2026-11-22T10:00:03Z WARNING guard     MESSAGE`: time in UTC, level, component and message."""

    converter = staticmethod(time.gmtime)

    def __init__(self, *, with_pid: bool = False) -> None:
        pid = "[%(process)d] " if with_pid else ""
        super().__init__(f"%(asctime)s %(levelname)-7s %(component)-9s {pid}%(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        record.component = component_of(record.name)
        text = super().format(record)
        if len(text) > MAX_RECORD_CHARS:
            text = f"{text[:MAX_RECORD_CHARS]} [... {len(text) - MAX_RECORD_CHARS} characters left out]"
        return text.translate(_ESCAPES)


class SecretMask(logging.Filter):
    """Strikes secrets out of the message and of the text of exceptions."""

    @cached_property
    def _secrets(self) -> "Secrets":
        from opsctl.base.secret_formats import Secrets, all_forms, find_in_environment  # noqa: PLC0415 (for a record only)

        return Secrets(passing=all_forms(find_in_environment(os.environ)))

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except (TypeError, ValueError, KeyError):  # arguments that do not fit the message
            text = f"{record.msg} {record.args!r}"
        record.msg, record.args = self._secrets.strike_text(text), None
        if record.exc_info:
            trace = record.exc_text or logging.Formatter().formatException(record.exc_info)
            record.exc_text = self._secrets.strike_text(trace)
        return True


class RecordHandler(logging.Handler):
    """Base of the handlers: one form, one mask, no errors."""

    def __init__(self, level: int, *, with_pid: bool = False) -> None:
        super().__init__(level)
        self.setFormatter(RecordFormatter(with_pid=with_pid))
        self.addFilter(SecretMask())

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a broken log must not end what it describes
            self.write(self.format(record) + "\n")

    def write(self, text: str) -> None:
        raise NotImplementedError


class Terminal(RecordHandler):
    """Writes to stderr as it is at the moment of the record."""

    is_level_chosen = False

    def write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def configure(level: str | None) -> None:
    """Log to the terminal from `level` on; without a level, warnings and errors."""
    terminal = Terminal(getattr(logging, (level or "warning").upper()))
    terminal.is_level_chosen = level is not None
    logger = logging.getLogger(ROOT)
    logger.setLevel(logging.DEBUG)
    logger.handlers[:] = [terminal]


def show_progress() -> None:
    """Show records of level info on the terminal, unless the user chose a level. For unattended commands."""
    for handler in logging.getLogger(ROOT).handlers:
        if isinstance(handler, Terminal) and not handler.is_level_chosen:
            handler.setLevel(logging.INFO)
