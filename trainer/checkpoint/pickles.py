"""Load files of torch without running code of other users.

A file of torch is a pickle: loading it runs whatever its writer put there. Tensors alone load without running code.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from opsctl.trainer.bounded_files import open_regular
from opsctl.trainer.errors import Refused


def load(path: Path, *, trust: bool = False) -> Any:
    """Load a file of torch, memory-mapped. Raises Refused if that would run code of another user, unless `trust`.

    Only a file that belongs to this user may hold other objects than tensors, such as DeepSpeed's optimizer state.
    """
    handle = open_regular(path, follow=True)
    try:
        # By descriptor: the name may be exchanged between two steps.
        opened = f"/proc/self/fd/{handle}"
        try:
            return torch.load(opened, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError:
            if not trust:
                _refuse_other(path, os.fstat(handle).st_uid)
            return torch.load(opened, map_location="cpu", weights_only=False, mmap=True)
    finally:
        os.close(handle)


def refuse_others(paths: Iterable[Path], *, trust: bool) -> None:
    """Raise Refused if one of the files belongs to another user, unless `trust`."""
    if not trust:
        for path in paths:
            _refuse_other(path, path.stat().st_uid)


def _refuse_other(path: Path, owner: int) -> None:
    if owner != os.geteuid():
        raise Refused(
            f"{path} belongs to uid {owner}: loading it would run code of that user as you;"
            " use --trust-pickle if you trust whoever wrote the file"
        )
