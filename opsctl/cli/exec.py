"""`opsctl exec`: run a command on many nodes; equal answers are shown once."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import chain

import click

from opsctl.app import App
from opsctl.base.nodesets import fold
from opsctl.base.ports import Answer
from opsctl.cli.node_view import NodeView, check_named
from opsctl.cli.options import INTERVAL
from opsctl.cli.output import app_and_json, print_result
from opsctl.nodes.remote.fanout import AnswerGroup, group_answers


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("-w", "--nodes", required=True, callback=check_named, help="Nodes to run on, such as node[001-064].")
@click.option("--timeout", type=INTERVAL, default="60s", show_default=True, help="Time limit of one node.")
@click.argument("command", nargs=-1, required=True)
@app_and_json
def exec_(app: App, *, nodes: str, timeout: timedelta, command: tuple[str, ...]) -> int:
    """Run a command on many nodes and group the output.

    Reaches nodes through running jobs, short jobs or ssh, as `remote.ways` allows. A single word is run by a shell on
    the node; several words are run as a program with arguments. The command is never run twice on a node. Exit 1 if
    the command failed on a node, or if a node did not answer.

    \b
    opsctl exec -w node[001-064] -- uptime
    opsctl exec -w node[001-004] 'nvidia-smi -L | wc -l'
    """
    view = NodeView(app)
    argv = ("sh", "-c", command[0]) if len(command) == 1 else command
    answers = view.fanout().run(view.chosen(nodes), argv, timeout=timeout.total_seconds())
    done = list(answers.values())
    lines = chain.from_iterable(map(_describe, group_answers(done)))
    print_result(done, *lines, *_list_exit_codes(done))
    return int(any(answer.code != 0 for answer in done))


def _describe(group: AnswerGroup) -> Iterator[str]:
    answer = group.answer
    outcome = f"exit {answer.code}" if answer.code is not None else f"no answer: {answer.problem}"
    yield f"--- {group.folded} ({len(group.nodes)})" + ("" if answer.code == 0 else f": {outcome}")
    yield from (text.rstrip("\n") for text in (answer.out, answer.err) if text)


def _list_exit_codes(answers: Sequence[Answer]) -> Iterator[str]:
    codes = sorted({answer.code for answer in answers}, key=lambda code: (code is None, code))
    for code in codes:
        names = [answer.node for answer in answers if answer.code == code]
        yield f"{'no answer' if code is None else f'exit {code}'}: {len(names)} {fold(names)}"
