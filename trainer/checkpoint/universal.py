"""Convert a checkpoint so that any topology can resume: whole parameters with their optimizer state."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from opsctl.trainer import manifest
from opsctl.trainer.checkpoint.pickles import refuse_others
from opsctl.trainer.checkpoint.rewrite import new_checkpoint, read_verified
from opsctl.trainer.errors import Refused

_TIMEOUT_S = 24 * 3600
"""Terabytes take hours."""
_MAX_SHOWN_LINES = 15
"""Lines of DeepSpeed's output in the error message."""


def reshape(source: Path, directory: Path, *, workers: int = 2, trust: bool = False) -> Path:
    """Write the checkpoint `source` for any topology and precision into `directory`; return the new path.

    Needs the space of three checkpoints while running, because DeepSpeed writes the parts first. Raises Refused,
    OSError.
    """
    saved = read_verified(source)
    if saved.kind != manifest.NATIVE:
        raise Refused(f"{source} is of kind {saved.kind}; only a checkpoint that the trainer saved can be reshaped")
    refuse_others((source / name for name in saved.files), trust=trust)  # DeepSpeed unpickles every file
    target = directory / manifest.directory_name(saved.step)
    with new_checkpoint(target, replace(saved, kind=manifest.UNIVERSAL)) as part:
        _convert(source, part, workers=workers)
        (directory / "latest_universal").unlink(
            missing_ok=True
        )  # DeepSpeed's pointer to the newest; this trainer derives the newest
    return target


def _convert(source: Path, target: Path, *, workers: int) -> None:
    argv = [sys.executable, "-P", "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    argv += ["--input_folder", str(source.absolute()), "--output_folder", str(target.absolute())]
    argv += ["--num_extract_workers", str(workers), "--num_merge_workers", str(workers)]
    environ = {**os.environ, "DS_ACCELERATOR": "cpu"}  # the conversion only moves data between files
    done = subprocess.run(
        argv,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode or not (target / "zero").is_dir():
        raise Refused(
            f"DeepSpeed could not convert {source} (exit {done.returncode}):\n"
            + "\n".join(done.stdout.splitlines()[-_MAX_SHOWN_LINES:])
        )
