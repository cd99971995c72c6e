"""Alerts as plain text: appended to a file, or printed."""

import os
import sys
from pathlib import Path

from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.base.ports import Runner
from opsctl.settings.alert_channels import FileTable, StdoutTable
from opsctl.state.files import append_line


class ToFile:
    def __init__(self, table: FileTable, runner: Runner) -> None:  # noqa: ARG002 (every channel takes a runner)
        self._path = Path(os.path.expandvars(table.path)).expanduser()

    def send(self, message: Message, *, reply_to: str = "") -> str:  # noqa: ARG002 (a file has no threads)
        try:
            append_line(self._path, _text(message).encode())
        except OSError as error:
            raise Undelivered(f"{self._path}: {error.strerror}") from error
        return ""


class ToStdout:
    def __init__(self, table: StdoutTable, runner: Runner) -> None: ...

    def send(self, message: Message, *, reply_to: str = "") -> str:  # noqa: ARG002 (a terminal has no threads)
        try:
            sys.stdout.write(_text(message))
            sys.stdout.flush()
        except OSError as error:
            raise Undelivered(f"stdout: {error.strerror}") from error
        return ""


def _text(message: Message) -> str:
    body = "".join(f"    {line}\n" if line else "\n" for line in message.body.splitlines())
    return f"{message.at:%Y-%m-%d %H:%M:%S} {message.subject}\n{body}\n"
