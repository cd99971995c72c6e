"""A route to nodes whose package is not installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.base.ports import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Answers for every node that the package is missing. Never runs a command."""

    name: str
    problem: str

    def reaches(self, node: str) -> bool:  # noqa: ARG002 (the protocol's signature)
        return True

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:  # noqa: ARG002 (the protocol's signature)
        return Answer(node=node, by=self.name, problem=f"{self.name}: {self.problem}", may_have_run=False)
