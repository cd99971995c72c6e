"""Find the rank that wrote a log line, from the prefixes of launchers, torch and NCCL and from the log's file name."""

import re
from dataclasses import dataclass, replace

from opsctl.telemetry.logs.log_lines import LogLine, read_line

_TORCH = re.compile(rb"\[Rank (\d{1,7})\]|\bRank (\d{1,7})\]")
_TORCH_PREFIX = re.compile(rb" *\[rank(\d{1,7})\]: ?")
_LOCAL = re.compile(rb"\[default(\d{1,3})\]: ?")
_SRUN = re.compile(rb" *(\d{1,7}): ")
_MPIRUN = re.compile(rb"\[\d+,(\d{1,7})\]<std(?:err|out)>: ?")
_DETERMINED = re.compile(rb"\[[^\]]{10,40}\] \w{6,12} \[rank=(\d{1,7})\] \|\| ?")
_OTHER = re.compile(rb"(?:std(?:err|out): |\((?:\w+ )?pid=\d+(?:, ip=[\w.:]+)?\) )+")
_NCCL = re.compile(rb"([\w.-]+):\d+:\d+ \[(\d{1,2})\] (?=(?:\S+ )?NCCL )")
_INVISIBLE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b"
    rb"|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xa9]|\xd8\x9c|\xef\xbb\xbf"
)
"""Terminal controls and Unicode's invisible and direction-changing characters."""
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
    if b"\x1b" in line or not line.isascii():
        line = _INVISIBLE.sub(b"", line)
    speaker, text = _split_launcher(read_line(line), known)
    if other := _OTHER.match(text):
        text = text[other.end() :]
    prefix = _TORCH_PREFIX.match(text)
    if prefix:
        text = text[prefix.end() :]
    if speaker.rank is None and (torch := prefix or _TORCH.search(text, 0, 300)):
        speaker = replace(speaker, rank=int(next(filter(None, torch.groups()))))
    if nccl := _NCCL.search(text, 0, 300):
        speaker = replace(speaker, node=speaker.node or nccl[1].decode(errors="replace"), gpu=nccl[2].decode())
    return speaker, text


def _split_launcher(log_line: LogLine, known: Speaker) -> tuple[Speaker, bytes]:
    """Return the speaker that the prefix of opsctl or of a launcher names, and the rest of the line."""
    text = log_line.text
    if log_line.rank is not None and log_line.node:
        return Speaker(node=log_line.node, rank=log_line.rank), text
    if local := _LOCAL.match(text):
        return replace(known, gpu=local[1].decode()), text[local.end() :]
    numbers = (prefix.match(text) for prefix in (_SRUN, _MPIRUN, _DETERMINED))
    if number := next(filter(None, numbers), None):
        return replace(known, rank=int(number[1])), text[number.end() :]
    return known, text
