"""The optional packages: which extra of the distribution brings them, and what to type where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opsctl.errors import MissingPackage

DISTRIBUTION = "opsctl-slurm"
"""The name on package indexes, where `opsctl` is another project's."""


@dataclass(frozen=True, slots=True)
class Extra:
    """One extra: the modules that it brings and what they are for."""

    modules: tuple[str, ...]
    purpose: str


EXTRAS: dict[str, Extra] = {
    "alerts": Extra(("slack_sdk", "apprise"), "sending alerts by Slack or apprise"),
    "ssh": Extra(("paramiko",), "running commands on nodes by ssh"),
    "metrics": Extra(("prometheus_client",), "opsctl metrics"),
    "plot": Extra(("matplotlib",), "opsctl plan --plot"),
    "trainer": Extra(("torch", "deepspeed", "numpy", "tensorboard", "tokenizers"), "the embedded trainer"),
    "export": Extra(("safetensors", "transformers"), "opsctl checkpoint export"),
    "pyslurm": Extra(("pyslurm",), "reading the queue without Slurm's commands"),
}
"""As pyproject.toml has them."""


def install_command(extra: str) -> str:
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@contextmanager
def required(extra: str) -> Iterator[None]:
    """Import modules of `extra` inside this block. Raises MissingPackage, with the command that installs it."""
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
