"""Messages that code under test logged."""

import logging

import pytest


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of level warning and above, in order."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
