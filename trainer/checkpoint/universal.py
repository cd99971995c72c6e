"""A checkpoint that any topology can resume: each parameter whole, with its share of the optimizer's state."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from opsctl.trainer import manifest
from opsctl.trainer.checkpoint.rewrite import new_checkpoint, verified
from opsctl.trainer.errors import Refused

_LONGEST_S = 24 * 3600
"""Terabytes take hours."""
_TAIL = 15
"""Lines of DeepSpeed's output that are shown when it fails."""


def reshape(source: Path, directory: Path, *, workers: int = 2) -> Path:
    """Write the checkpoint `source`, for any topology and precision, into `directory`. Returns its path.

    Raises Refused, OSError. Takes the room of three checkpoints while it works: DeepSpeed lays out the parts first.
    """
    held = verified(source)
    if held.kind != manifest.NATIVE:
        raise Refused(f"{source} is of kind {held.kind}; only what training saved can be reshaped")
    target = directory / manifest.directory_name(held.step)
    with new_checkpoint(target, replace(held, kind=manifest.UNIVERSAL)) as part:
        _convert(source, part, workers=workers)
        (directory / "latest_universal").unlink(missing_ok=True)  # DeepSpeed's idea of the newest; ours is derived
    return target


def _convert(source: Path, target: Path, *, workers: int) -> None:
    argv = [sys.executable, "-P", "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    argv += ["--input_folder", str(source.absolute()), "--output_folder", str(target.absolute())]
    argv += ["--num_extract_workers", str(workers), "--num_merge_workers", str(workers)]
    environ = {**os.environ, "DS_ACCELERATOR": "cpu"}  # it only moves what is in files
    done = subprocess.run(
        argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
        timeout=_LONGEST_S,
    )  # fmt: skip
    if done.returncode or not (target / "zero").is_dir():
        raise Refused(
            f"DeepSpeed could not convert {source} (exit {done.returncode}):\n"
            + "\n".join(done.stdout.splitlines()[-_TAIL:])
        )
