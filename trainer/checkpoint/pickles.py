"""Load files of torch without running code that they hold.

A file of torch is a pickle: loading it runs whatever its writer put there. Tensors alone load without running code. Who
owns a file says nothing about its writer: a downloaded file belongs to whoever downloaded it.
"""

import os
import pickle
from collections.abc import Iterable
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from opsctl.trainer.bounded_files import open_regular
from opsctl.trainer.errors import Refused

_KNOWN = (
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"),
    ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    ("deepspeed.utils.tensor_fragment", "fragment_address"),
)
"""Classes in DeepSpeed's states of optimizers. They hold numbers, and making one runs nothing else."""


def load(path: Path, *, trust: bool = False) -> Any:
    """Load a file of torch, memory-mapped: tensors, and DeepSpeed's classes of numbers.

    Raises Refused for a file with other objects, whose loading could run code, unless `trust`.
    """
    handle = open_regular(path, follow=True)
    try:
        # By descriptor: the name may be exchanged between two steps.
        opened = f"/proc/self/fd/{handle}"
        try:
            return _load_known(opened)
        except pickle.UnpicklingError as error:
            if not trust:
                raise Refused(
                    f"{path} holds more than tensors: loading it would run code that its writer chose, as you; use"
                    " --trust-pickle if you trust whoever wrote the file"
                ) from error
            return torch.load(opened, map_location="cpu", weights_only=False, mmap=True)
    except Refused:
        raise
    except Exception as error:  # a damaged file fails in any way that its parts do
        raise Refused(f"{path} cannot be read as a file of torch.save: {error!s:.300}") from error
    finally:
        os.close(handle)


def _load_known(opened: str) -> Any:
    try:
        return torch.load(opened, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        try:
            known = [getattr(import_module(module), name) for module, name in _KNOWN]
        except (ImportError, AttributeError):
            known = []
        # Python 3.11 before 3.11.4 writes the member of an enum as a call of getattr.
        with torch.serialization.safe_globals([*known, (_member, "builtins.getattr")]):
            return torch.load(opened, map_location="cpu", weights_only=True, mmap=True)


def _member(of: object, name: object) -> Enum:
    """Stand in for getattr in a pickle: return the member of one of the known enums, and nothing else."""
    if isinstance(of, type) and issubclass(of, Enum) and name in of.__members__:
        return of.__members__[str(name)]
    raise pickle.UnpicklingError(f"{of!r} has no member {name!r}")


def check_harmless(paths: Iterable[Path], *, trust: bool) -> None:
    """Raise Refused if loading one of the files, by another program, could run code, unless `trust`.

    A file of another user could change after this check, and is refused whatever it holds.
    """
    for path in () if trust else paths:
        owner = path.stat().st_uid
        if owner != os.geteuid():
            raise Refused(
                f"{path} belongs to uid {owner}: loading it would run code of that user as you; use --trust-pickle if"
                " you trust whoever wrote the file"
            )
        if path.suffix == ".pt":
            load(path)
