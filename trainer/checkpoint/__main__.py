"""`python -m opsctl.trainer.checkpoint COMMAND …`: work on checkpoints while no trainer runs.

The commands that need torch; `opsctl checkpoint` lists, verifies and removes checkpoints without torch.
Exit codes: 0 done; 1 the exported model gives other logits; 2 refused, nothing changed.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from opsctl.trainer.errors import Refused, whole_number

_MAX_LOGIT_DIFFERENCE = 1e-3
"""Accepted difference of fp32 logits; sums in another order differ by much less."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments`; return the exit code."""
    namespace = _parser().parse_args(arguments)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # no command trains, so no GPU is needed
    try:
        code: int = namespace.run(namespace)
    except (Refused, OSError, ValueError, ImportError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
        sys.stderr.write(f"trainer.checkpoint: {text}\n")
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m opsctl.trainer.checkpoint", description="Work on checkpoints.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], purpose: str) -> argparse.ArgumentParser:
        argument_parser = commands.add_parser(name, help=purpose, description=purpose)
        argument_parser.set_defaults(run=run)
        argument_parser.add_argument("--json", action="store_true", help="print JSON")
        return argument_parser

    begin = add("import", _import, "Print the tables with which a run begins with a model of transformers.")
    begin.add_argument("source", type=Path, metavar="DIRECTORY", help="config.json and safetensors")
    begin.add_argument(
        "--sequence", type=whole_number, metavar="N", help="tokens of a sample (default: the longest of the model)"
    )

    for name, run, purpose in (
        ("reshape", _reshape, "Write a checkpoint for any topology into directory TARGET, or for the same run."),
        ("export", _export, "Write a checkpoint for Hugging Face transformers."),
    ):
        argument_parser = add(name, run, purpose)
        argument_parser.add_argument("source", type=Path, metavar="CHECKPOINT")
        argument_parser.add_argument("target", type=Path, nargs="?" if run is _reshape else None, metavar="TARGET")
        argument_parser.add_argument("--trust-pickle", action="store_true", help="load files that can run code as you")
    argument_parser.add_argument("--bf16", action="store_true", help="write weights of fp32 in bf16")
    argument_parser.add_argument(
        "--compare", action="store_true", help="load the export in transformers and compare logits"
    )
    argument_parser.add_argument(
        "--tokenizer", type=Path, metavar="DIRECTORY", help="a model of transformers whose tokenizer to copy"
    )
    return parser


def _print_row(arguments: argparse.Namespace, line: str, **row: Any) -> None:
    print(json.dumps([row], indent=1, default=str) if arguments.json else line.format(**row))  # noqa: T201 - a command line


def _reshape(arguments: argparse.Namespace) -> int:
    from opsctl.trainer.checkpoint import rewrite  # noqa: PLC0415 - torch takes a second

    written = rewrite.reshape(arguments.source, arguments.target, trust=arguments.trust_pickle)
    _print_row(arguments, "{path}: any topology can resume it", path=written)
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from opsctl.trainer.checkpoint import transformers_config, transformers_files  # noqa: PLC0415 - export and import alone need them

    model = transformers_config.read_model(arguments.source, sequence=arguments.sequence)
    if transformers_files.has_weights(arguments.source):
        with ExitStack() as stack:
            transformers_files.StoredTensors(arguments.source, stack, framework="np").refuse_unread(model)
    drawn = {"dropout", "init_std", *["tied"] * (model.is_tied == model.kind.is_tied)}
    fields = model.model_dump(exclude_none=True, exclude=drawn).items()
    table = {key: value for key, value in fields if value or value != type(model).model_fields[key].default}
    trainer = {"weights": str(arguments.source.absolute()), "model": table}
    if arguments.json:
        print(json.dumps(trainer, indent=1))  # noqa: T201 - a command line
        return 0
    scaling = table.pop("rope_scaling", None)
    tables = {"trainer.model": table, **({"trainer.model.rope_scaling": scaling} if scaling else {})}
    # [trainer] comes last, so that its other keys can be written below.
    for head, keys in (tables | {"trainer": {"weights": trainer["weights"]}}).items():
        # JSON and TOML write text, numbers and truth alike.
        print("\n".join([f"\n[{head}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]))  # noqa: T201 - likewise
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from opsctl.trainer.checkpoint import export  # noqa: PLC0415 - torch takes a second

    options = {"tokenizer": arguments.tokenizer, "trust": arguments.trust_pickle, "in_bf16": arguments.bf16}
    export.export(arguments.source, arguments.target, **options)
    if not arguments.compare:
        _print_row(arguments, "{path}: exported", path=arguments.target)
        return 0
    difference = export.compare(arguments.source, arguments.target, trust=arguments.trust_pickle)
    line = "{path}: logits differ by {difference:.1e} at most"
    _print_row(arguments, line, path=arguments.target, difference=difference)
    return int(not difference <= _MAX_LOGIT_DIFFERENCE)


if __name__ == "__main__":
    sys.exit(main())
