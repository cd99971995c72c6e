"""The errors of the trainer, of its options, and of a library which is missing."""

import argparse
import importlib
from typing import Any


def whole_number(text: str) -> int:
    """Return the number of an option of a command. Raises argparse's error."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


class Refused(Exception):
    """The config, the data or a checkpoint is unusable. Every rank raises the same error; the exit code is 2."""


def load_library(module: str, needed_by: object, *, extra: str = "") -> Any:
    """Return a library that `needed_by` needs, of an extra of this package. Raises Refused, with how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = (error.name or module).rpartition(".")[2]
        package = f"'opsctl-slurm[{extra}]'" if extra else name
        raise Refused(f"{needed_by} needs the {name} library (pip install {package})") from error
