"""Tie the life of a process to its parent. Standard library only: opsctl's checks start on nodes without packages."""

from __future__ import annotations

import ctypes

PR_SET_PDEATHSIG = 1


def die_with_parent(number: int) -> None:
    """Ask the kernel to send this process a signal when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
