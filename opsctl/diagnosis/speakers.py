"""Find the rank that wrote a log line, from the prefixes of launchers, torch and NCCL and from the log's file name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from opsctl.telemetry.logs.log_lines import read_line

_TORCH = re.compile(rb"\[rank(\d{1,7})\]:|\[Rank (\d{1,7})\]|\bRank (\d{1,7})\]")
_LOCAL = re.compile(rb"\[default(\d{1,3})\]: ?")
_SRUN = re.compile(rb" *(\d{1,7}): ")
_NCCL = re.compile(rb"\b([\w.-]+):\d+:\d+ \[(\d{1,2})\] ")
MAX_NAME_CHARS = 300
"""File systems allow 255 bytes."""
_FILE = re.compile(r"(?P<node>.+)-(?P<rank>\d{1,7})\.log|.*-\d+(?:_\d+)?-(?P<host>[^-].*)\.(?:out|err|log|txt)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """The rank that wrote a line. Unknown fields are empty."""

    node: str = ""
    rank: int | None = None
    gpu: str = ""
    """GPU number on the node, or PCI address."""

    @property
    def is_known(self) -> bool:
        return bool(self.node) or self.rank is not None


UNKNOWN_SPEAKER = Speaker()


def speaker_of_file(name: str) -> Speaker:
    """Parse a log's file name: `<node>-<rank>.log` (opsctl's) or `%x-%j-%N.out` (one log a node)."""
    match = _FILE.fullmatch(name[:MAX_NAME_CHARS])
    if match is None:
        return UNKNOWN_SPEAKER
    if match["host"]:
        return Speaker(node=match["host"])
    return Speaker(node=match["node"], rank=int(match["rank"]))


def split(line: bytes, known: Speaker = UNKNOWN_SPEAKER) -> tuple[Speaker, bytes]:
    """Return the speaker of a line, and the line without the launcher's prefix. `known` facts take precedence."""
    log_line = read_line(line)
    speaker, text = known, log_line.text
    if log_line.rank is not None and log_line.node:
        speaker = Speaker(node=log_line.node, rank=log_line.rank)
    elif local := _LOCAL.match(text):
        speaker, text = replace(speaker, gpu=local[1].decode()), text[local.end() :]
    elif number := _SRUN.match(text):
        speaker, text = replace(speaker, rank=int(number[1])), text[number.end() :]
    if speaker.rank is None and (torch := _TORCH.search(text, 0, 300)):
        speaker = replace(speaker, rank=int(torch[1] or torch[2] or torch[3]))
    if nccl := _NCCL.match(text):
        speaker = replace(speaker, node=speaker.node or nccl[1].decode(errors="replace"), gpu=nccl[2].decode())
    return speaker, text
