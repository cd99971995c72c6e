"""How a program writes a line: as the error that ends it, as a notice that it survives, or without a mark. Pure."""

from __future__ import annotations

import re
from enum import IntEnum


class LineLevel(IntEnum):
    """The mark that a program puts on a line."""

    NOTICE = 0
    """A warning, information, or a line that says how the program goes on."""
    PLAIN = 1
    """No mark: output of the program or of a library."""
    FATAL = 2
    """An exception, or an error of a launcher, the shell, the kernel or Slurm."""


_EXCEPTION = re.compile(
    r"^[\s|>]*(?:what\(\):\s*)?(?:Original )?(?:[A-Za-z_]\w*\.){0,8}"
    r"[A-Z]\w*(?:Error|Exception|Invalid|Interrupt|Failure|Timeout|Exit)\w*(?:[:(]|\s*$)"
)
_NOTICE = re.compile(
    r"\b\w*Warning:|(?<!NCCL )\b(?:WARN|WARNING|INFO|DEBUG|NOTICE)\b|\bNOTE:|^\s*\[?[WID]\d{3,4}\b|^\s*\[[WID] |"
    r": [WI] \w+/|\[\w+ [WID] \d|(?i:\bwarning: )|^\s*warnings?\.warn\("
)
_UTILITY = re.compile(r"^\s*(?:df|du|ls|rm|cp|mv|ln|cat|mkdir|chmod|chown|find|touch|tail|head|stat|grep|nvidia-smi): ")
"""Programs of shell scripts, which go on after them."""
_GOES_ON = re.compile(
    r"(?i)\b(?:(?:going to|using|use[sd]?) .{1,80} instead|fall(?:s|ing)? back|"
    r"will (?:be ignored|not load any|start from)|"
    r"(?:can|will|may) (?:safely )?(?:be )?ignored?\b|skipp(?:ed|ing)\b|retry(?:ing)?\b|proceed(?:s|ing)? with|"
    r"spank: \S{1,80}: Plugin file not found|from scratch|disabling\b|using internal|performance may degrade)"
)
_FATAL = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL|Fatal)\b|^\s*\[?[EF]\d{3,4}\b|^\s*\[[EF] |NCCL WARN|NVRM: |kernel: |\bTraceback\b|"
    r"(?:^|[\s>])\w[\w./-]*: (?:fatal )?error: |(?:^|\s)(?:fatal |[Ee])rror: |(?:^|\s)fatal: |command not found|"
    r"terminate called|what\(\): |panicked at|core dumped|\bAborted\b|error while loading shared libraries|"
    r"symbol lookup error|srun: error|Assertion .{1,200} failed|\*\*\* "
)


def is_exception(text: str) -> bool:
    """Return whether a line is the last of a traceback: the exception and its message."""
    return _EXCEPTION.search(text) is not None


def find_level(text: str) -> LineLevel:
    """Return how a line is written. An exception is fatal even where its message speaks of a warning."""
    if is_exception(text):
        return LineLevel.FATAL
    if any(pattern.search(text) for pattern in (_NOTICE, _GOES_ON, _UTILITY)):
        return LineLevel.NOTICE
    return LineLevel.FATAL if _FATAL.search(text) else LineLevel.PLAIN
