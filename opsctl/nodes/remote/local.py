"""Run commands on this machine, if this machine is the node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from opsctl.base.errors import MissingProgram
from opsctl.base.ports import Answer, Runner, TimedOut


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


def run_here(
    runner: Runner,
    node: str,
    argv: Sequence[str],
    *,
    by: str,
    timeout: float,
    stdin: str,
    env: Mapping[str, str | None] | None = None,
) -> Answer:
    """Run a program on this machine for at most `timeout` seconds. Return its end as an Answer. Raises nothing."""
    try:
        done = runner.run(argv, timeout=timeout, stdin=stdin, env=env)
    except MissingProgram as error:
        return Answer(node=node, by=by, problem=error.message, may_have_run=False)
    except (TimedOut, OSError, ValueError) as error:
        return Answer(node=node, by=by, problem=str(error))
    return Answer(node=node, by=by, code=done.code, out=done.out, err=done.err)
