"""Fixtures of the guard, for tests of what calls it."""

from tests.unit.guard.conftest import checkpoint, world

__all__ = ["checkpoint", "world"]
