"""Fixtures of the diagnosis, for `opsctl why`."""

from tests.unit.diagnosis.conftest import log

__all__ = ["log"]
