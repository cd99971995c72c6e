"""Run commands on this machine, if this machine is the node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from opsctl.base.ports import Answer, Runner, run_here


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Runs commands here for the nodes that this machine is."""

    runner: Runner
    names: Collection[str]
    """Node names of this machine."""
    name: ClassVar[str] = "local"

    def reaches(self, node: str) -> bool:
        return node in self.names

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        return run_here(self.runner, node, argv, by=self.name, timeout=timeout, stdin=stdin)
