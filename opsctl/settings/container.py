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

    runtime: ContainerRuntime
    image: Image
    mounts: tuple[Mount, ...] = ()
    options: tuple[Option, ...] = ()
    python: Line = Field("python3", min_length=1)

    @property
    def sources(self) -> dict[Path, Path]:
        """The directories and files outside, by their paths in the container."""
        parts = [mount.split(":") for mount in self.mounts]
        return {Path(inside): Path(outside) for outside, inside, *_ in parts}
