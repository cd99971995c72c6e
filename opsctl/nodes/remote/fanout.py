"""Run one command on many nodes at the same time, on every node by the first route that works."""

import json
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar

from opsctl.base.errors import MissingProgram
from opsctl.base.nodesets import fold
from opsctl.base.ports import Answer, Answers, NodeShell, Runner, Shell, TimedOut
from opsctl.state.files import parse_objects


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
        try:
            done = self.runner.run(argv, timeout=timeout, stdin=stdin)
        except MissingProgram as error:
            return Answer(node=node, by=self.name, problem=error.message, may_have_run=False)
        except (TimedOut, OSError, ValueError) as error:
            return Answer(node=node, by=self.name, problem=str(error))
        return Answer(node=node, by=self.name, code=done.code, out=done.out, err=done.err)


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

    def run(self, nodes: Iterable[str], argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answers:
        """Run `argv` on every node, for at most `timeout` seconds. Return the answers by node. Raises nothing.

        The next route to a node is tried only if the command certainly did not start there.
        """
        routes = {node: [place for place, shell in enumerate(self.shells) if shell.reaches(node)] for node in nodes}
        no_route = Answer(node="", by="", problem="no route leads to the node", may_have_run=False)
        answers = {node: replace(no_route, node=node) for node in routes}
        problems: dict[str, list[str]] = {node: [] for node in routes}

        def run_by(place: int) -> Answers:
            shell, reached = self.shells[place], [node for node in routes if routes[node][:1] == [place]]
            if not isinstance(shell, NodeShell):
                return shell.run_all(reached, argv, timeout=timeout, stdin=stdin)
            return self.map_nodes(reached, lambda node: shell.run(node, argv, timeout=timeout, stdin=stdin))

        while places := {left[0] for left in routes.values() if left}:
            with ThreadPoolExecutor(len(places), thread_name_prefix="shell") as pool:
                answered = ChainMap(*pool.map(run_by, places))
            for node, answer in answered.items():
                is_started = answer.code is not None or answer.may_have_run
                problems[node].append(answer.problem)
                answers[node] = answer if is_started else replace(answer, by="", problem="; ".join(problems[node]))
                routes[node] = [] if is_started else routes[node][1:]
        return answers

    def map_nodes(self, nodes: Iterable[str], run_on: Callable[[str], Answer]) -> Answers:
        """Call `run_on` for every node, `parallel` nodes at the same time. Return the answers by node."""
        unique_nodes = list(dict.fromkeys(nodes))
        if not unique_nodes:
            return {}
        with ThreadPoolExecutor(min(self.parallel, len(unique_nodes)), thread_name_prefix="node") as pool:
            return dict(zip(unique_nodes, pool.map(run_on, unique_nodes), strict=True))

    def run_program(
        self, program: str, arguments: Mapping[str, Mapping[str, object]], *, python: str, timeout: float
    ) -> Answers:
        """Run the text of a Python program on every node at the same time, each with its argument as JSON."""
        fanout = replace(self, parallel=max(1, len(arguments)))

        def run_on(node: str) -> Answer:
            argv = (python, "-", json.dumps(arguments[node]))
            return self.run([node], argv, timeout=timeout, stdin=program)[node]

        return fanout.map_nodes(arguments, run_on)


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
    for value in parse_objects(text):
        fields |= value
    return fields
