"""Whether the image and the runtime of [container] are there, as far as this machine shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from opsctl.errors import MissingProgram
from opsctl.ports import Runner, TimedOut
from opsctl.preflight.problem import Problem, error, note
from opsctl.settings.container import ContainerTable

SRUN_TIMEOUT_S = 10.0


def check_container(table: ContainerTable, runner: Runner) -> list[Problem]:
    """Return what is missing or unknown. Compute nodes may have other programs than this machine: never an error."""
    problems = [*_check_image(table), *_check_runtime(table, runner)]
    return [replace(problem, check="container", source="[container]") for problem in problems]


def _check_image(table: ContainerTable) -> Iterator[Problem]:
    path = Path(table.image)
    is_file = path.is_absolute() or (table.runtime != "podman" and path.suffix in {".sif", ".sqsh", ".img"})
    if not is_file:
        yield note(
            f"[container] image = {table.image}: an address, not a file: whether the nodes can read it is unknown",
            "put the image into a file on the shared file system, so that no attempt waits for a registry",
        )
    elif not path.is_absolute():
        yield error(f"[container] image = {table.image}: a relative path", "use the absolute path")
    elif not path.exists():
        yield error(
            f"[container] image = {table.image} does not exist", "correct the path; compute nodes must see it too"
        )


def _check_runtime(table: ContainerTable, runner: Runner) -> Iterator[Problem]:
    if table.runtime != "pyxis":
        if shutil.which(table.runtime) is None:
            yield note(
                f"{table.runtime} is not installed on this machine; whether the nodes have it is unknown",
                f"run `{table.runtime} --version` on a node, or load its module in [setup] modules",
            )
        return
    reason = _why_without_pyxis(runner)
    if reason:
        yield note(
            f"pyxis: {reason}; whether the nodes have it is unknown",
            "run `srun --help` on a node: with pyxis in plugstack.conf, it lists --container-image",
        )


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
