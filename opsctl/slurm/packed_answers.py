"""Separate the answers of the nodes of a step that runs pack_answer.sh with `srun --label`."""

import base64
import re
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from opsctl.base.ports import Answer, Answers, Completed

PACK_SCRIPT = Path(__file__).with_name("pack_answer.sh")
LINE = re.compile(r"^ *(\d+): (@\S+|#\d+|[A-Za-z0-9+/]+=*)$", re.MULTILINE | re.ASCII)
"""A line of a node. Whatever else Slurm or a prolog prints is left out."""
MAX_BYTES = 16 << 20
"""Bytes of stdout, and of stderr, that are read of one node."""


def parse_answers(done: Completed, nodes: Iterable[str], lost: Answer) -> Answers:
    """Return the answers by node; like `lost` for a node whose command has not ended."""
    answers = {node: replace(lost, node=node) for node in nodes}
    errors = _split(done.err)
    for task, text in _split(done.out).items():
        node, _, rest = text.partition("@")[2].partition("\n")
        packed, _, ending = rest.partition("#")
        if node in answers:
            answer = replace(lost, node=node, out=_unpack(packed), err=_unpack(errors.get(task, "")))
            answers[node] = replace(answer, code=int(ending.split()[0]), problem="") if ending else answer
    return answers


def _split(text: str) -> dict[str, str]:
    """Return the lines by task."""
    lines: dict[str, list[str]] = {}
    for task, line in LINE.findall(text):
        lines.setdefault(task, []).append(line)
    return {task: "\n".join(own) for task, own in lines.items()}


def _unpack(text: str) -> str:
    joined = text.replace("\n", "")
    data = b""
    with suppress(ValueError):
        data = base64.b64decode(joined[: len(joined) // 4 * 4])
    try:
        data = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, MAX_BYTES)
    except zlib.error:
        data = data[:MAX_BYTES]  # a node without gzip
    return data.decode(errors="replace")
