"""`python -m trainer CONFIG.json`: one rank of a training run.

Exit codes: 0 finished or stopped by itself, with a stop reason; 1 crashed, or left for a loss that is not a number;
2 config, data or checkpoint refused.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from trainer import config, process, stacks
from trainer.errors import Refused


def main() -> NoReturn:
    """Run this rank to its end, and end the process: a rank that failed must not linger among its threads."""
    process.die_with_parent()
    try:
        _run(sys.argv[1:])
    except (Refused, ValidationError) as error:
        _leave(2, f"trainer: {error}\n")
    except BaseException:  # noqa: BLE001 - told in full, and the process ends
        _leave(1, traceback.format_exc())


def _run(arguments: list[str]) -> NoReturn:
    if len(arguments) != 1:
        raise Refused("usage: python -m trainer CONFIG.json")
    me = process.from_environment(os.environ)
    stacks.answer_requests(os.environ, me)
    try:
        settings = config.read(Path(arguments[0]))
    except OSError as error:
        raise Refused(f"config {arguments[0]} cannot be read: {error}") from error

    from trainer.parallel import choose_accelerator  # noqa: PLC0415 - takes seconds: a wrong config is told first

    choose_accelerator()
    from trainer.loop import run  # noqa: PLC0415 - DeepSpeed looks for its accelerator when it is imported

    run(settings, me, os.environ)


def _leave(status: int, message: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.write(message)
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
