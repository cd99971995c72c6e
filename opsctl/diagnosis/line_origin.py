"""Find the rank that wrote a log line, from the prefixes of launchers, torch and NCCL and from the log's file name."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.base.tables import read_byte_patterns
from opsctl.telemetry.logs.log_lines import RANKS_LOG, LogLine, read_line

_PREFIXES = read_byte_patterns("diagnosis/patterns.toml", "ranks")
_INVISIBLE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b"
    rb"|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xa9]|\xd8\x9c|\xef\xbb\xbf"
)
"""Terminal controls and Unicode's invisible and direction-changing characters."""
MAX_NAME_CHARS = 300
"""File systems allow 255 bytes."""
_NODE_LOG = re.compile(r".*-\d+(?:_\d+)?-(?P<node>[^-].*)\.(?:out|err|log|txt)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOrigin:
    """The rank that wrote a line. Unknown fields are empty."""

    node: str = ""
    rank: int | None = None
    gpu: str = ""
    """GPU number on the node, or PCI address."""

    @property
    def is_known(self) -> bool:
        return bool(self.node) or self.rank is not None


UNKNOWN_ORIGIN = LineOrigin()


def origin_of_file(name: str) -> LineOrigin:
    """Parse a log's file name: RANKS_LOG (opsctl's) or `%x-%j-%N.out` (one log a node)."""
    name = name[:MAX_NAME_CHARS]
    if match := RANKS_LOG.fullmatch(name):
        return LineOrigin(node=match["node"], rank=None if match["last"] else int(match["first"]))
    match = _NODE_LOG.fullmatch(name)
    return LineOrigin(node=match["node"]) if match else UNKNOWN_ORIGIN


def ranks_of_file(name: str) -> range:
    """Return the ranks whose output a log of opsctl has, by its file name."""
    match = RANKS_LOG.fullmatch(name[:MAX_NAME_CHARS])
    return range(int(match["first"]), int(match["last"] or match["first"]) + 1) if match else range(0)


def find_homes(logs: Path) -> dict[int, str]:
    """Return the node by rank, from the file names of the ranks' logs."""
    homes: dict[int, str] = {}
    for path in logs.glob("*.log"):
        homes |= dict.fromkeys(ranks_of_file(path.name), origin_of_file(path.name).node)
    return homes


def split(line: bytes, known: LineOrigin = UNKNOWN_ORIGIN) -> tuple[LineOrigin, bytes]:
    """Return the origin of a line, and the line without the launcher's prefix. `known` facts take precedence."""
    if b"\x1b" in line or not line.isascii():
        line = _INVISIBLE.sub(b"", line)
    origin, text = _split_launcher(read_line(line), known)
    if other := _PREFIXES["other"].match(text):
        text = text[other.end() :]
    prefix = _PREFIXES["torch_prefix"].match(text)
    if prefix:
        text = text[prefix.end() :]
    if origin.rank is None and (torch := prefix or _PREFIXES["torch"].search(text, 0, 300)):
        origin = replace(origin, rank=int(next(filter(None, torch.groups()))))
    if nccl := _PREFIXES["nccl"].search(text, 0, 300):
        origin = replace(origin, node=origin.node or nccl[1].decode(errors="replace"), gpu=nccl[2].decode())
    return origin, text


def _split_launcher(log_line: LogLine, known: LineOrigin) -> tuple[LineOrigin, bytes]:
    """Return the origin that the prefix of opsctl or of a launcher names, and the rest of the line."""
    text = log_line.text
    if log_line.rank is not None and log_line.node:
        return LineOrigin(node=log_line.node, rank=log_line.rank), text
    if local := _PREFIXES["local"].match(text):
        return replace(known, gpu=local[1].decode()), text[local.end() :]
    numbers = (_PREFIXES[launcher].match(text) for launcher in ("srun", "mpirun", "determined", "pals"))
    if number := next(filter(None, numbers), None):
        return replace(known, rank=int(number[1])), text[number.end() :]
    return known, text
