"""Run one command on many nodes at the same time, on every node by the first route that works."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar

from opsctl.base.nodesets import fold
from opsctl.base.ports import Answer, Runner, Shell, run_here


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Answers for every node that the package is missing. Never runs a command."""

    name: str
    problem: str

    def reaches(self, node: str) -> bool:  # noqa: ARG002 (the protocol's signature)
        return True

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:  # noqa: ARG002 (the protocol's signature)
        return Answer(node=node, by=self.name, problem=f"{self.name}: {self.problem}", may_have_run=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fanout:
    """Runs commands on nodes. `shells` are the routes, in the order in which they are tried."""

    shells: Sequence[Shell]
    parallel: int = 32
    """Maximum number of nodes at the same time."""

    def run(self, nodes: Iterable[str], argv: Sequence[str], *, timeout: float, stdin: str = "") -> dict[str, Answer]:
        """Run `argv` on every node, for at most `timeout` seconds. Return the answers by node. Raises nothing."""
        return self.map_nodes(nodes, lambda node: self.run_on(node, argv, timeout=timeout, stdin=stdin))

    def map_nodes(self, nodes: Iterable[str], run_on: Callable[[str], Answer]) -> dict[str, Answer]:
        """Call `run_on` for every node, `parallel` nodes at the same time. Return the answers by node."""
        unique_nodes = list(dict.fromkeys(nodes))
        if not unique_nodes:
            return {}
        with ThreadPoolExecutor(min(self.parallel, len(unique_nodes)), thread_name_prefix="node") as pool:
            return dict(zip(unique_nodes, pool.map(run_on, unique_nodes), strict=True))

    def run_program(
        self, program: str, arguments: Mapping[str, Mapping[str, object]], *, python: str, timeout: float
    ) -> dict[str, Answer]:
        """Run the text of a Python program on every node at the same time, each with its argument as JSON."""
        fanout = replace(self, parallel=max(1, len(arguments)))

        def run_on(node: str) -> Answer:
            argv = (python, "-", json.dumps(arguments[node]))
            return fanout.run_on(node, argv, timeout=timeout, stdin=program)

        return fanout.map_nodes(arguments, run_on)

    def run_on(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        """Run `argv` on one node. The next route is tried only if the command certainly did not start."""
        problems: list[str] = []
        for shell in self.shells:
            if not shell.reaches(node):
                continue
            answer = shell.run(node, argv, timeout=timeout, stdin=stdin)
            if answer.code is not None or answer.may_have_run:
                return answer
            problems.append(answer.problem)
        problem = "; ".join(problems) or "no route leads to the node"
        return Answer(node=node, by="", problem=problem, may_have_run=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGroup:
    """Nodes with the same answer."""

    nodes: tuple[str, ...]
    answer: Answer

    @property
    def folded(self) -> str:
        return fold(self.nodes)


def group_answers(answers: Iterable[Answer]) -> list[AnswerGroup]:
    """Group nodes by answer: failures before successes, then the smallest group first."""
    nodes_by_answer: dict[Answer, list[str]] = {}
    for answer in answers:
        problem = answer.problem.replace(answer.node, "NODE") if answer.node else answer.problem
        shared = replace(answer, node="", by="", problem=problem)
        nodes_by_answer.setdefault(shared, []).append(answer.node)
    groups = [AnswerGroup(nodes=tuple(sorted(nodes)), answer=answer) for answer, nodes in nodes_by_answer.items()]
    return sorted(groups, key=lambda group: (group.answer.code == 0, len(group.nodes), group.nodes))


def merge_objects(text: str) -> dict[str, object]:
    """Merge the JSON objects that a program printed. Other lines are ignored."""
    fields: dict[str, object] = {}
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            fields |= value
    return fields
