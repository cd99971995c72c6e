"""One command on many nodes: so many at once, each by the first way that works there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from opsctl.nodesets import fold
from opsctl.ports import Answer, Shell


@dataclass(frozen=True, slots=True, kw_only=True)
class Fanout:
    """The ways to nodes, in the order in which they are tried."""

    shells: Sequence[Shell]
    parallel: int = 32

    def run(self, nodes: Iterable[str], argv: Sequence[str], *, timeout: float, stdin: str = "") -> dict[str, Answer]:
        """Run `argv` on each of `nodes`; an answer for every one. Raises nothing."""
        return self.map_nodes(nodes, lambda node: self.run_on(node, argv, timeout=timeout, stdin=stdin))

    def map_nodes(self, nodes: Iterable[str], ask: Callable[[str], Answer]) -> dict[str, Answer]:
        """What `ask` says of each node, so many at once."""
        wanted = list(dict.fromkeys(nodes))
        if not wanted:
            return {}
        with ThreadPoolExecutor(min(self.parallel, len(wanted)), thread_name_prefix="node") as pool:
            return dict(zip(wanted, pool.map(ask, wanted), strict=True))

    def run_on(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        """By the first way by which the command may have begun: it must not run twice."""
        tried: list[str] = []
        for shell in self.shells:
            if not shell.reaches(node):
                continue
            answer = shell.run(node, argv, timeout=timeout, stdin=stdin)
            if answer.code is not None or answer.may_have_run:
                return answer
            tried.append(answer.problem)
        return Answer(node=node, by="", problem="; ".join(tried) or "no way leads there", may_have_run=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGroup:
    """Nodes that answered the same."""

    nodes: tuple[str, ...]
    answer: Answer

    @property
    def folded(self) -> str:
        return fold(self.nodes)


def grouped(answers: Iterable[Answer]) -> list[AnswerGroup]:
    """Nodes by identical result, the largest group last: what is odd comes first."""
    same: dict[Answer, list[str]] = {}
    for answer in answers:
        plain = answer.problem.replace(answer.node, "NODE") if answer.node else answer.problem
        same.setdefault(replace(answer, node="", by="", problem=plain), []).append(answer.node)
    groups = [AnswerGroup(nodes=tuple(sorted(nodes)), answer=answer) for answer, nodes in same.items()]
    return sorted(groups, key=lambda group: (group.answer.code == 0, len(group.nodes), group.nodes))
