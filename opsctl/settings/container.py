"""`[container]` of TRAIN.toml: the container in which the ranks run."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from opsctl.settings.field_types import SettingsTable, must

ContainerRuntime = Literal["pyxis", "apptainer", "podman"]


Line = Annotated[str, must(str.isprintable, "{!r} contains control characters")]
Image = Annotated[
    Line,
    must(
        lambda text: text and not text.startswith("-"),
        "{!r} is not an image: a file, or an address such as docker://python:3.12",
    ),
]
Mount = Annotated[
    Line,
    must(
        re.compile(r"/[^:,]*:/[^:,]*(:[^:,]*)?", re.DOTALL).fullmatch,
        "{!r} is not a mount: /on/the/node:/in/the/container, with :ro for read-only",
    ),
]
Option = Annotated[
    Line,
    must(
        lambda text: text.startswith("-"),
        "{!r} is not an option: write the value into the same text, as --option=value",
    ),
]


class ContainerTable(SettingsTable):
    """`[container]` of TRAIN.toml: the container in which the ranks run. The guard runs outside."""

    runtime: ContainerRuntime = Field(description="pyxis: NVIDIA's plugin of Slurm, with enroot; apptainer; podman")
    image: Image = Field(description="image, as the runtime names it: a file on the shared file system, or an address")
    mounts: tuple[Mount, ...] = Field(
        (), description="more mounts, such as /data:/data:ro; the run directory and the trainer's are always mounted"
    )
    options: tuple[Option, ...] = Field(
        (), description='more options of pyxis, apptainer exec or podman run, such as "--nv", passed unchanged'
    )
    python: Line = Field(
        "python3", min_length=1, description="Python inside the image that starts the ranks; tested: 3.11 and 3.13"
    )

    @property
    def sources(self) -> dict[Path, Path]:
        """The directories and files outside, by their paths in the container."""
        parts = [mount.split(":") for mount in self.mounts]
        return {Path(inside): Path(outside) for outside, inside, *_ in parts}
