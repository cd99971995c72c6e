"""The optional packages: the extra that installs each package, and the command to type where a package is missing."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opsctl.base.errors import MissingPackage

DISTRIBUTION = "opsctl-slurm"
"""The name on package indexes, where `opsctl` belongs to another project."""


@dataclass(frozen=True, slots=True)
class Extra:
    """One extra: the modules that it installs, and their purpose."""

    modules: tuple[str, ...]
    purpose: str


EXTRAS: dict[str, Extra] = {
    "alerts": Extra(("apprise",), "sending alerts by apprise"),
    "ssh": Extra(("paramiko",), "running commands on nodes by ssh"),
    "metrics": Extra(("prometheus_client",), "opsctl metrics"),
    "dash": Extra(("starlette", "uvicorn"), "opsctl dash"),
    "top": Extra(("textual",), "opsctl top"),
    "mcp": Extra(("mcp",), "opsctl mcp"),
    "trainer": Extra(("torch", "deepspeed", "numpy", "tensorboard", "tokenizers"), "the embedded trainer"),
    "data": Extra(("pyarrow", "zstandard"), "Parquet and zstd as input of opsctl.trainer.prepare"),
    "export": Extra(("safetensors", "transformers"), "opsctl checkpoint export"),
    "pyslurm": Extra(("pyslurm",), "reading the queue without Slurm's commands"),
}
"""The same extras as in pyproject.toml."""


def install_command(extra: str) -> str:
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def is_installed(module: str) -> bool:
    """Return whether a top-level module can be imported. Raises ImportError, ValueError or OSError of import hooks."""
    if module in sys.modules:  # find_spec raises ValueError for an imported module without a spec
        return sys.modules[module] is not None
    return importlib.util.find_spec(module) is not None


@contextmanager
def required(extra: str) -> Iterator[None]:
    """Guard the imports of an extra's modules. Raises MissingPackage, whose hint is the command that installs the
    extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS[extra].modules:
            raise
        raise MissingPackage(
            f"{missing} is not installed; {EXTRAS[extra].purpose} needs the extra [{extra}]",
            hint=install_command(extra),
        ) from error
