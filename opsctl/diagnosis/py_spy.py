"""py-spy on every rank of a running attempt: on each node by the first way that leads there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.nodes.remote.fanout import AnswerGroup, Fanout, grouped
from opsctl.state.files import write_atomic

SECONDS = 30.0
FILE = "py-spy.txt"
_SCRIPT = r"""command -v "$2" >/dev/null || { echo "$2 is not there" >&2; exit 127; }
says() { tr '\0' '\n' <"$1/environ" | sed -n "s/^$2=//p"; }
is_python() { case "$(readlink "$1/exe")" in */python*) return 0 ;; esac; return 1; }
for environ in $(grep -lzFx -e "TRAIN_ATTEMPT=$1" /proc/[0-9]*/environ 2>/dev/null); do
  p=${environ%/environ}
  is_python "$p" || continue
  rank=$(says "$p" RANK) node=$(says "$p" SLURMD_NODENAME)
  [ -n "$rank" ] && [ "${node:-$0}" = "$0" ] || continue
  parent=/proc/$(sed -n 's/^PPid:[[:space:]]*//p' "$p/status")
  if is_python "$parent" && [ "$(says "$parent" RANK)" = "$rank" ]; then continue; fi
  echo "== node $0 rank $rank pid ${p#/proc/}"
  # The reasons of an error are numbered, as the lines of tasks are by srun.
  "$2" dump "$3" --pid "${p#/proc/}" 2>&1 | sed 's/^ *\([0-9][0-9]*: \)/Error \1/'
done 2>/dev/null
exit 0"""
"""On each node: every Python process of the attempt that has a rank; not those that a rank has forked to load data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PySpyDump:
    """What py-spy printed on all nodes together, and which nodes said nothing and why."""

    text: str
    problems: tuple[str, ...]

    def keep(self, target: Path) -> None:
        """Beside what the ranks said themselves. Raises OSError."""
        target.mkdir(parents=True, exist_ok=True)
        write_atomic(target / FILE, self.text)


def dump_stacks(program: str, attempt: str, nodes: Sequence[str], ways: Fanout, *, native: bool = False) -> PySpyDump:
    """Have py-spy (`program`) look at the ranks of `attempt`. Without `native` no rank is stopped for it. Raises
    nothing."""
    # py-spy reads frames of C only of a process that it has stopped.
    how = "--native" if native else "--nonblocking"
    answers = ways.map_nodes(
        nodes, lambda node: ways.run_on(node, ("sh", "-c", _SCRIPT, node, attempt, program, how), timeout=SECONDS)
    )
    silent = [answer for answer in answers.values() if "== node" not in answer.out]
    return PySpyDump(
        text="".join(answer.out for answer in answers.values()),
        problems=tuple(_why(group) for group in grouped(silent)),
    )


def _why(group: AnswerGroup) -> str:
    answer = group.answer
    if answer.code is None:
        return f"{group.folded} could not be reached: {answer.problem}"
    if answer.code == 0:
        return f"{group.folded}: no rank is there that this user may look at"
    text = " ".join(answer.err.split())[-200:]
    hint = "; --py-spy PROGRAM names one that the nodes have" if answer.code == 127 else ""
    return f"{group.folded}: {text or f'exit code {answer.code}'}{hint}"
