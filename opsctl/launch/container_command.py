"""The shell words that start the rank shim, in a container or outside.

The shim needs the standard library only, so that an image needs Python but not opsctl: opsctl's own files are mounted.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.base.errors import ConfigError
from opsctl.settings.container import ContainerTable

SHIM_MOUNT = "/opt/opsctl-shim"
"""Directory in the container that holds opsctl's package."""
START_SHIM = (
    f"import sys; sys.path.insert(0, '{SHIM_MOUNT}'); from opsctl.guard.rank import main; sys.exit(main(sys.argv[1:]))"
)
PASSED_VARIABLES = (
    "SLURM*",
    "TRAIN_*",
    "MASTER_*",
    "NNODES",
    "PYTHONUNBUFFERED",
    "CUDA_*",
    "NVIDIA_*",
    "ROCR_*",
    "HIP_*",
    "NCCL_*",
    "TORCH_FR_*",
    "TORCH_NCCL_*",
    "OMP_*",
    "WANDB_*",
    "MLFLOW_*",
    "COMET_*",
    "HF_*",
)
"""The variables of the job that podman passes, besides those in [environment]. The other runtimes pass all."""


def shim_words(python: str) -> str:
    """Return the words that start the shim outside of a container."""
    return f"{shlex.quote(python)} -P -m opsctl.guard.rank"


def container_words(table: ContainerTable, *, directories: Sequence[Path], environment: Sequence[str]) -> str:
    """Return the words that start the shim in the container, to follow the options of the job step.

    `directories` are mounted at the same path; `environment` are variables that must reach the ranks. The working
    directory is that of the shell. Raises ConfigError for a directory that cannot be mounted.
    """
    for directory in directories:
        if set(str(directory)) & set(":,"):
            raise ConfigError("[container]", [f"{directory}: cannot be mounted: its path has a colon or a comma"])
    own = [f"{directory}:{directory}" for directory in dict.fromkeys(directories)]
    package = Path(__file__).resolve().parents[1]
    mounts = [*own, f"{package}:{SHIM_MOUNT}/opsctl:ro", *table.mounts]
    start = RUNTIMES[table.runtime](table, mounts, environment)
    inside = [table.python, "-I", "-c", START_SHIM]
    return f'{_quote(start.words)} {start.directory_option}"$PWD" {_quote([*table.options, *start.image, *inside])}'


def _quote(words: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, words))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStart:
    """The words with which a runtime starts a container."""

    words: list[str]
    directory_option: str
    """The option that names the working directory, up to its value."""
    image: list[str]
    """The image, behind all options; empty if an option names the image."""


def _pyxis(table: ContainerTable, mounts: Sequence[str], _: Sequence[str]) -> ContainerStart:
    words = [f"--container-image={table.image}", f"--container-mounts={','.join(mounts)}"]
    return ContainerStart(words=words, directory_option="--container-workdir=", image=[])


def _apptainer(table: ContainerTable, mounts: Sequence[str], _: Sequence[str]) -> ContainerStart:
    words = ["apptainer", "exec", *(f"--bind={mount}" for mount in mounts)]
    return ContainerStart(words=words, directory_option="--pwd=", image=[table.image])


def _podman(table: ContainerTable, mounts: Sequence[str], environment: Sequence[str]) -> ContainerStart:
    volumes = [f"--volume={mount}" for mount in mounts]
    variables = [f"--env={name}" for name in (*PASSED_VARIABLES, *environment)]
    # Without cgroups of its own, the container stays in Slurm's cgroup of the job, with its limits and its end.
    isolation = ["--cgroups=disabled", "--network=host", "--ipc=host", "--security-opt=label=disable"]
    words = ["podman", "run", "--rm", *isolation, *volumes, *variables]
    return ContainerStart(words=words, directory_option="--workdir=", image=[table.image])


RUNTIMES = {"pyxis": _pyxis, "apptainer": _apptainer, "podman": _podman}
