"""Evidence of a hang: the stacks of all ranks, kept in the life's directory and summed up in a few lines."""

from __future__ import annotations

from pathlib import Path

from opsctl.diagnosis.ask import answers, ask, py_spy
from opsctl.diagnosis.stacks import told

__all__ = ["ask", "py_spy", "summary"]


def summary(target: Path, *, ranks: int) -> list[str]:
    """Which ranks are where: the fewest first, for the odd ones out are what everybody else waits for."""
    return [*told(answers(target), ranks=ranks), *([f"stacks: {target}"] if target.exists() else [])]
