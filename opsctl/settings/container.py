"""`[container]` of TRAIN.toml: the container in which the ranks run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from opsctl.settings.field_types import SettingsTable

ContainerRuntime = Literal["pyxis", "apptainer", "podman"]


def _check_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r} contains control characters")
    return text


def _check_image(text: str) -> str:
    if not text or text.startswith("-"):
        raise ValueError(f"{text!r} is not an image: a file, or an address such as docker://python:3.12")
    return _check_line(text)


def _check_mount(text: str) -> str:
    parts = text.split(":")
    is_absolute = all(part.startswith("/") for part in parts[:2])
    if len(parts) not in (2, 3) or not is_absolute or "," in text:
        raise ValueError(f"{text!r} is not a mount: /on/the/node:/in/the/container, with :ro for read-only")
    return _check_line(text)


def _check_option(text: str) -> str:
    if not text.startswith("-"):
        raise ValueError(f"{text!r} is not an option: write the value into the same text, as --option=value")
    return _check_line(text)


class ContainerTable(SettingsTable):
    """`[container]` of TRAIN.toml: the container in which the ranks run. The guard runs outside."""

    runtime: ContainerRuntime = Field(description="pyxis: NVIDIA's plugin of Slurm, with enroot; apptainer; podman")
    image: Annotated[str, AfterValidator(_check_image)] = Field(
        description="image, as the runtime names it: a file on the shared file system, or an address"
    )
    mounts: tuple[Annotated[str, AfterValidator(_check_mount)], ...] = Field(
        (), description="more mounts, such as /data:/data:ro; the run directory and the trainer's are always mounted"
    )
    options: tuple[Annotated[str, AfterValidator(_check_option)], ...] = Field(
        (), description='more options of pyxis, apptainer exec or podman run, such as "--nv", passed unchanged'
    )
    python: Annotated[str, AfterValidator(_check_line)] = Field(
        "python3", min_length=1, description="Python inside the image that starts the ranks; tested: 3.11 and 3.13"
    )

    @property
    def sources(self) -> dict[Path, Path]:
        """The directories and files outside, by their paths in the container."""
        parts = [mount.split(":") for mount in self.mounts]
        return {Path(inside): Path(outside) for outside, inside, *_ in parts}
