"""`python -m opsctl.trainer.checkpoint VERB …`: checkpoints, with nothing running.

Exit codes: 0 done; 1 damage was found or could not be ruled out, or the exported model gives other logits; 2 refused,
and nothing was changed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opsctl.trainer import manifest
from opsctl.trainer.errors import Refused

_LOGITS = 1e-3
"""The largest difference in fp32 that different orders of the same sums explain, with room to spare."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what `arguments` say; the exit code."""
    namespace = _parser().parse_args(arguments)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # where nothing trains there is no need to look for a GPU
    try:
        code: int = namespace.verb(namespace)
    except (Refused, OSError, ValueError, ImportError) as error:
        sys.stderr.write(f"trainer.checkpoint: {error}\n")
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m opsctl.trainer.checkpoint", description="Work on checkpoints.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(name: str, verb: Callable[[argparse.Namespace], int], purpose: str) -> argparse.ArgumentParser:
        argument_parser = verbs.add_parser(name, help=purpose, description=purpose)
        argument_parser.set_defaults(verb=verb)
        argument_parser.add_argument("--json", action="store_true", help="print JSON")
        return argument_parser

    several: dict[str, Any] = {
        "nargs": "+",
        "type": Path,
        "metavar": "PATH",
        "help": "a checkpoint, or a directory of them",
    }
    add("list", _list, "Step, kind, topology and size of each.").add_argument("paths", **several)
    add("verify", _verify, "Hash each file and say what is not as it was written.").add_argument("paths", **several)

    prune = add("prune", _prune, "Remove old ones; never the newest two that are good.")
    prune.add_argument("directory", type=Path)
    prune.add_argument("--keep-last", type=_last, required=True, metavar="N", help="newest ones that stay, at least 2")
    prune.add_argument("--keep-every", type=_every, default=0, metavar="N", help="steps whose multiples stay")
    prune.add_argument("--dry-run", action="store_true", help="say what would go")

    shrink = add("shrink", _shrink, "Write anew, in place, what is stored and not seen.")
    shrink.add_argument("paths", **several)
    shrink.add_argument("--dry-run", action="store_true", help="say what would be gained")

    for name, verb, purpose in (
        ("bf16", _bf16, "Write the weights in bf16; also those that were exported."),
        ("reshape", _reshape, "Write it for any topology; TARGET is a directory of checkpoints."),
        ("export", _export, "Write it as Hugging Face transformers reads it."),
    ):
        argument_parser = add(name, verb, purpose)
        argument_parser.add_argument("source", type=Path, metavar="CHECKPOINT")
        argument_parser.add_argument("target", type=Path, metavar="TARGET")
        if name == "export":
            argument_parser.add_argument("--compare", action="store_true", help="load it there and compare logits")
    return parser


def _found(paths: Sequence[Path]) -> list[Path]:
    """The checkpoints that `paths` are or hold. Raises Refused where there is none."""
    found: list[Path] = []
    for path in paths:
        inside = [path] if (path / manifest.MANIFEST).exists() else [c.path for c in manifest.list_checkpoints(path)]
        if not inside:
            raise Refused(f"{path} is not a checkpoint and holds none")
        found += inside
    return found


def _tell(arguments: argparse.Namespace, rows: list[dict[str, Any]], line: str) -> None:
    if arguments.json:
        print(json.dumps(rows, indent=1, default=str))  # noqa: T201 - a command line
    else:
        for row in rows:
            print(line.format(**row))  # noqa: T201 - a command line


def _list(arguments: argparse.Namespace) -> int:
    rows = []
    for path in _found(arguments.paths):
        held = manifest.read_manifest(path)
        size = sum(record.size for record in held.files.values())
        cut = " ".join(f"{key}={value}" for key, value in held.topology.items())
        rows.append({"path": path, "step": held.step, "kind": held.kind, "bytes": size, "topology": cut})
    _tell(arguments, rows, "{path}: step {step}, {kind}, {bytes} bytes, {topology}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    rows = []
    for path in _found(arguments.paths):
        try:
            problems = manifest.verify(path)
            verdict = "damaged" if problems else "verified"
        except OSError as error:
            problems, verdict = [str(error)], "unknown"
        rows.append({"path": path, "verdict": verdict, "problems": problems})
    _tell(arguments, rows, "{path}: {verdict} {problems}")
    return int(any(row["problems"] for row in rows))


def _last(text: str) -> int:
    return _from(2, text)


def _every(text: str) -> int:
    return _from(0, text)


def _from(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def _prune(arguments: argparse.Namespace) -> int:
    if not arguments.directory.is_dir():
        raise Refused(f"{arguments.directory} is not a directory")
    gone = manifest.find_superfluous(
        manifest.list_checkpoints(arguments.directory),
        keep_last=arguments.keep_last,
        keep_every=arguments.keep_every,
        is_good=lambda path: not manifest.verify(path),
    )
    if not arguments.dry_run:
        manifest.sweep(arguments.directory)
        for checkpoint in gone:
            manifest.remove(checkpoint.path)
    literal = "would be removed" if arguments.dry_run else "removed"
    _tell(
        arguments,
        [{"path": checkpoint.path, "step": checkpoint.step, "what": literal} for checkpoint in gone],
        "{path}: {what}",
    )
    return 0


def _shrink(arguments: argparse.Namespace) -> int:
    from opsctl.trainer.checkpoint import rewrite  # noqa: PLC0415 - torch takes a second

    for path in arguments.paths:
        rewrite.finish_cut(path)
    rows = []
    for path in _found(arguments.paths):
        relieved = rewrite.shrink(path, dry_run=arguments.dry_run)
        rows.append({"path": path, "bytes": sum(relieved.values()), "files": len(relieved)})
    _tell(
        arguments,
        rows,
        "{path}: {bytes} bytes in {files} files that no tensor shows" + " (dry run)" * arguments.dry_run,
    )
    return 0


def _bf16(arguments: argparse.Namespace) -> int:
    from opsctl.trainer.checkpoint import rewrite  # noqa: PLC0415 - torch takes a second

    rewrite.to_bf16(arguments.source, arguments.target)
    _tell(arguments, [{"path": arguments.target}], "{path}: weights in bf16")
    return 0


def _reshape(arguments: argparse.Namespace) -> int:
    from opsctl.trainer.checkpoint import universal  # noqa: PLC0415 - torch takes a second

    written = universal.reshape(arguments.source, arguments.target)
    _tell(arguments, [{"path": written}], "{path}: any topology can resume it")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from opsctl.trainer.checkpoint import export  # noqa: PLC0415 - torch takes a second

    export.export(arguments.source, arguments.target)
    if not arguments.compare:
        _tell(arguments, [{"path": arguments.target}], "{path}: exported")
        return 0
    difference = export.compare(arguments.source, arguments.target)
    _tell(
        arguments,
        [{"path": arguments.target, "difference": difference}],
        "{path}: logits differ by {difference:.1e} at most",
    )
    return int(not difference <= _LOGITS)


if __name__ == "__main__":
    sys.exit(main())
