"""Atomic writes and fsync. The functions live in the trainer, which must not import opsctl."""

from __future__ import annotations

from opsctl.trainer.atomic_files import fsync_directory, write_atomic

__all__ = ["fsync_directory", "write_atomic"]
