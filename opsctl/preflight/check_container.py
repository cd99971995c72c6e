"""Whether image, runtime and mounts of [container] are there, as far as this machine shows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from opsctl.base.errors import MissingProgram
from opsctl.base.ports import Runner, TimedOut
from opsctl.checkpoints.trainer_command.read_command import find_outside
from opsctl.preflight.command_files import exists
from opsctl.preflight.facts import MisplacedPath
from opsctl.preflight.problem import Problem, error, note, warning
from opsctl.settings.container import ContainerTable
from opsctl.settings.loader import TrainSettings

SRUN_TIMEOUT_S = 10.0


def check_container(table: ContainerTable, runner: Runner) -> list[Problem]:
    """Return what is missing or unknown. Compute nodes may have other programs and mounts than this machine."""
    return [*_check_image(table), *_check_runtime(table, runner), *_check_mounts(table)]


def list_mounted(
    missing: Sequence[MisplacedPath], train: TrainSettings, table: ContainerTable, run: Path
) -> tuple[MisplacedPath, ...]:
    """Return the missing files that a container would have from this machine. The image may hold all others.

    Those are files below the run directory, [setup] directory, and mounts with the same path. Setup lines run outside.
    """
    start = run / train.setup.directory
    sources = {run: run, start: start} | table.sources
    program = train.command[0] if train.command and "/" not in train.command[0] else ""
    return tuple(
        file
        for file in missing
        if file.origin != "command" or (file.path != program and _keeps_its_path(start / file.path, sources))
    )


def _keeps_its_path(path: Path, sources: Mapping[Path, Path]) -> bool:
    """Whether a path of the container is the same outside. `sources` holds the path outside of each mount."""
    place = Path(os.path.normpath(path))
    return find_outside(place, sources) == place and any(place.is_relative_to(inside) for inside in sources)


def _check_image(table: ContainerTable) -> Iterator[Problem]:
    path = Path(table.image)
    is_file = path.is_absolute() or (table.runtime != "podman" and path.suffix in {".sif", ".sqsh", ".img"})
    if not is_file:
        yield note("container.address", image=table.image)
    elif not path.is_absolute():
        yield error("container.relative", image=table.image)
    elif not path.exists():
        yield error("container.missing", image=table.image)


def _check_runtime(table: ContainerTable, runner: Runner) -> Iterator[Problem]:
    if table.runtime != "pyxis":
        if shutil.which(table.runtime) is None:
            yield note("container.no_runtime", runtime=table.runtime)
    elif why := _why_without_pyxis(runner):
        yield note("container.no_pyxis", why=why)


def _why_without_pyxis(runner: Runner) -> str:
    """Return why pyxis cannot be seen here; empty if srun offers its options."""
    try:
        done = runner.run(("srun", "--help"), timeout=SRUN_TIMEOUT_S)
    except MissingProgram:
        return "there is no srun on this machine"
    except TimedOut as refusal:
        return str(refusal)
    if "--container-image" in done.out + done.err:
        return ""
    return "srun on this machine has no --container-image" if done.code == 0 else "srun --help fails on this machine"


def _check_mounts(table: ContainerTable) -> Iterator[Problem]:
    for mount in table.mounts:
        source = mount.partition(":")[0]
        if exists(Path(source)) is False:
            yield warning("container.mount", source=source)
