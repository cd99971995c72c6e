"""Dump the stacks of a running attempt's ranks with py-spy, on every node by the first route that works."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from opsctl.nodes.remote.fanout import AnswerGroup, Fanout, group_answers
from opsctl.state.files import make_directories, write_atomic

TIMEOUT_S = 30.0
FILE_NAME = "py-spy.txt"
MAX_ERROR_CHARS = 200
_NOT_FOUND = 127
AUTO = "auto"
"""As the program: py-spy beside opsctl's Python, else of the node's PATH; without either, no stacks."""
_RANK = re.compile(r"^== node \S+ rank (\d{1,7}) ", re.MULTILINE | re.ASCII)
_SUMMARY = re.compile(r"^== processes (\d{1,7}) uid (\d{1,10}) scope (\d) py-spy (\S*)$", re.MULTILINE | re.ASCII)
_OTHER = re.compile(r"^== other \S+ rank (\d{1,7})$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PySpyDump:
    """The output of py-spy on all nodes, and why nodes have none."""

    text: str
    problems: tuple[str, ...]
    is_complete: bool = False
    """Whether every node answered and showed processes of the attempt, and every rank that has a process has one of
    Python: then a rank without a Python process is gone."""
    may_answer: bool = False
    """Whether py-spy is installed and permitted wherever ranks run."""
    reached: tuple[str, ...] = ()
    """Nodes whose processes were listed."""

    def save(self, target: Path) -> None:
        """Write the output into the directory with the ranks' own answers. Raises OSError."""
        make_directories(target)
        write_atomic(target / FILE_NAME, self.text)


def dump_stacks(program: str, attempt: str, nodes: Sequence[str], fanout: Fanout, *, native: bool = False) -> PySpyDump:
    """List the processes of the ranks of `attempt`, with their stacks by py-spy (`program`, or AUTO). Raises nothing.

    Empty `program`: no stacks, which needs no py-spy. `native` adds the C frames, for which py-spy stops each rank;
    without `native` no rank is stopped.
    """
    mode = "--native" if native else "--nonblocking"
    beside = str(Path(sys.executable).parent / "py-spy")
    words = (beside, mode, "py-spy", "optional") if program == AUTO else (program, mode, "", "")

    script = files("opsctl.diagnosis").joinpath("list_ranks.sh").read_text()
    answers = fanout.run(nodes, ("sh", "-c", script, "@", attempt, *words), timeout=TIMEOUT_S)
    for node, answer in answers.items():
        answers[node] = replace(answer, out=answer.out.replace(" @ rank ", f" {node} rank "))
    silent = [answer for answer in answers.values() if "== node" not in answer.out or answer.code]
    output = "".join(answer.out for answer in answers.values())
    others = set(_OTHER.findall(output)) - set(_RANK.findall(output))
    views = [_SUMMARY.search(answer.out) for answer in answers.values()]
    return PySpyDump(
        text="".join(answer.out for answer in answers.values() if "== node" in answer.out),
        problems=tuple(_explain(group) for group in group_answers(silent)),
        is_complete=bool(views) and not others and all(view and (int(view[1]) or view[2] == "0") for view in views),
        may_answer=bool(views) and all(view and view[4] and "0" in (view[2], view[3]) for view in views),
        reached=tuple(node for node, answer in answers.items() if answer.code is not None),
    )


def _explain(group: AnswerGroup) -> str:
    """Return why py-spy printed no stack on these nodes."""
    answer = group.answer
    if answer.code is None:
        return f"{group.folded} could not be reached: {answer.problem}"
    if answer.code == 0:
        return f"{group.folded}: no Python process of a rank that this user may inspect"
    text = " ".join(answer.err.split())[-MAX_ERROR_CHARS:] or f"exit code {answer.code}"
    hint = "; name an installed program with --py-spy" if answer.code == _NOT_FOUND else ""
    return f"{group.folded}: {text}{hint}"
