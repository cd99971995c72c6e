"""Fixtures of the guard, for tests of what calls it."""

from tests.unit.guard.conftest import checkpoint, train

__all__ = ["checkpoint", "train"]
