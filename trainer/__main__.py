"""`python -m opsctl.trainer CONFIG.json`: one rank of a training run.

Exit codes: 0 the trainer finished or stopped itself, and wrote a stop reason; 1 the trainer crashed, or stopped because
the loss is not a number or memory is full; 2 the trainer refused the config, the data or the checkpoint.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from opsctl.trainer import config, config_problems, dry_run, rank_process
from opsctl.trainer.errors import Refused, whole_number


def main() -> NoReturn:
    """Run this rank, then end the process.

    os._exit() ends the process, because threads of a failed rank would keep the process alive.
    """
    rank_process.die_with_parent()
    try:
        _run(sys.argv[1:])
    except ValidationError as error:
        _leave(2, f"Refused by the trainer: {config_problems.join_problems(config.TrainerConfig, error)}\n")
    except Refused as error:
        _leave(2, f"Refused by the trainer: {error}\n")
    except SystemExit as error:
        _leave(int(error.code or 0), "")
    except BaseException:  # noqa: BLE001 - the traceback is printed, and the process ends
        _leave(1, traceback.format_exc())


def _run(arguments: Sequence[str]) -> NoReturn:
    namespace = _parse(arguments)
    if namespace.dry_run:
        _leave(dry_run.main(namespace.config, processes=namespace.processes, environ=os.environ), "")
    me = rank_process.from_environment(os.environ)
    rank_process.answer_stack_requests(os.environ, me)
    try:
        settings = config.TrainerConfig.model_validate_json(namespace.config.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"config {namespace.config} cannot be read: {error}") from error

    from opsctl.trainer.process_groups import choose_accelerator  # noqa: PLC0415 - the import takes seconds: a wrong config is refused first

    choose_accelerator()
    from opsctl.trainer.loop import run  # noqa: PLC0415 - DeepSpeed chooses its accelerator at import

    if settings.trace:
        rank_process.trace(settings.trace, os.environ, me)
    run(settings, me, os.environ)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments. Exits with 2 if one of them would have no effect."""
    usage = "python -m opsctl.trainer CONFIG [--dry-run [--processes N]]"
    parser = argparse.ArgumentParser(prog="trainer", usage=usage, allow_abbrev=False)
    parser.add_argument("config", type=Path, help="a trainer.json; with --dry-run, a TRAIN.toml is accepted too")
    parser.add_argument("--dry-run", action="store_true", help="print layout, memory and checks, and start no run")
    parser.add_argument(
        "--processes", type=whole_number, metavar="N", help="of the dry run (default: of the TRAIN.toml)"
    )
    namespace = parser.parse_args(arguments)
    if namespace.processes and not namespace.dry_run:
        parser.error("--processes has no effect without --dry-run")
    return namespace


def _leave(status: int, message: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.write(message)
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
