"""Fixtures of the guard's tests, for tests of the code that calls the guard."""

from tests.unit.guard.conftest import checkpoint, train

__all__ = ["checkpoint", "train"]
