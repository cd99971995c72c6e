"""`python -m opsctl.trainer CONFIG.json`: one rank of a training run.

Exit codes: 0 finished or stopped by itself, with a stop reason; 1 crashed, or left for a loss that is not a number or
for memory that is full; 2 config, data or checkpoint refused.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from opsctl.trainer import config, dry_run, rank_process, stack_requests, trace
from opsctl.trainer.errors import Refused


def main() -> NoReturn:
    """Run this rank to its end, and end the process: a rank that failed must not linger among its threads."""
    rank_process.die_with_parent()
    try:
        _run(sys.argv[1:])
    except ValidationError as error:
        _leave(2, f"Refused by the trainer: {config.describe_errors(error)}\n")
    except Refused as error:
        _leave(2, f"Refused by the trainer: {error}\n")
    except SystemExit as error:
        _leave(int(error.code or 0), "")
    except BaseException:  # noqa: BLE001 - told in full, and the process ends
        _leave(1, traceback.format_exc())


def _run(arguments: Sequence[str]) -> NoReturn:
    namespace = _parser().parse_args(arguments)
    if namespace.dry_run:
        _leave(dry_run.main(namespace.config, processes=namespace.processes, environ=os.environ), "")
    me = rank_process.from_environment(os.environ)
    stack_requests.answer_requests(os.environ, me)
    try:
        settings = config.read(namespace.config, skip_samples=namespace.skip_samples)
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"config {namespace.config} cannot be read: {error}") from error

    from opsctl.trainer.process_groups import choose_accelerator  # noqa: PLC0415 - takes seconds: a wrong config is told first

    choose_accelerator()
    from opsctl.trainer.loop import run  # noqa: PLC0415 - DeepSpeed looks for its accelerator when it is imported

    packages = namespace.trace.split(",") if namespace.trace else settings.trace
    if packages:
        trace.trace(packages, trace.trace_file(os.environ, me))
    run(settings, me, os.environ)


def _parser() -> argparse.ArgumentParser:
    usage = "python -m opsctl.trainer CONFIG [--trace PACKAGES] [--skip-samples A-B] | --dry-run [--processes N]"
    parser = argparse.ArgumentParser(prog="trainer", usage=usage, allow_abbrev=False)
    parser.add_argument("config", type=Path, help="a trainer.json; with --dry-run also a train's TOML")
    parser.add_argument("--trace", metavar="PACKAGES", help="log each call into these packages, separated by commas")
    parser.add_argument(
        "--skip-samples",
        action="append",
        default=[],
        metavar="A-B",
        help="skip these, counted from 0 in the order of training, besides data.skip_samples; may be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="show layout, memory and checks, and start nothing")
    parser.add_argument("--processes", type=_count, metavar="N", help="of the dry run; as the train says if absent")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of processes")
    return int(text)


def _leave(status: int, message: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.write(message)
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
