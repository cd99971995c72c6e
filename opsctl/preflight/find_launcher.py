"""The program of a command that starts the ranks of a node."""

import re
from collections.abc import Sequence
from pathlib import Path

from opsctl.checkpoints.trainer_command.shell import END

WRAPPERS = frozenset({"exec", "srun", "env", "time", "nohup", "numactl", "then", "do", END})
"""Words before a program."""
MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})


def find_launcher(words: Sequence[str]) -> str:
    """Return the word that names the launcher; empty without one."""
    return next((word for position, word in enumerate(words) if _is_launcher(words, position)), "")


def _is_launcher(words: Sequence[str], position: int) -> bool:
    """Return whether a word is a program that starts the ranks of a node, and not the value of an option."""
    name, before = Path(words[position]).name, words[position - 1] if position else ""
    if before == "-m":
        return name in MODULES
    if name == "deepspeed":  # also the name of a strategy
        return position == 0 or before in WRAPPERS or bool(re.fullmatch(r"\w+=.*", before))
    is_program = position == 0 or not before.startswith("-")
    if name == "accelerate":
        return is_program and words[position + 1 : position + 2] == ["launch"]
    return is_program and name == "torchrun" and "=" not in words[position]
