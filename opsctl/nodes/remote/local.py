"""On this machine, where it is the node itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from opsctl.errors import MissingProgram
from opsctl.ports import Answer, Runner, TimedOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Runs the command here, for the nodes that this machine is."""

    runner: Runner
    names: Collection[str]
    name: ClassVar[str] = "local"

    def reaches(self, node: str) -> bool:
        return node in self.names

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        return run_here(self.runner, node, argv, by=self.name, timeout=timeout, stdin=stdin)


def run_here(
    runner: Runner, node: str, argv: Sequence[str], *, by: str, timeout: float, stdin: str,
    env: Mapping[str, str | None] | None = None,
) -> Answer:  # fmt: skip
    """Run a program of this machine; its ending as an Answer."""
    try:
        done = runner.run(argv, timeout=timeout, stdin=stdin, env=env)
    except MissingProgram as error:
        return Answer(node=node, by=by, problem=error.message, may_have_run=False)
    except (TimedOut, OSError, ValueError) as error:
        return Answer(node=node, by=by, problem=str(error))
    return Answer(node=node, by=by, code=done.code, out=done.out, err=done.err)
