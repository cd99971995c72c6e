"""What differs between versions of Slurm: since when each thing is there, and what is done where it is not.

The one place for numbers of versions. What each row says was seen with real binaries before and after the change; the
exact version is that of Slurm's release notes (docs/explanation/slurm-versions.md). A row that nothing in opsctl uses
is not kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

Version = tuple[int, int]
"""Such as (22, 5): year and month of a release."""
OLDEST: Version = (22, 5)
"""The oldest version that opsctl works with."""
NUMBER = re.compile(r"(\d+)\.(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that newer versions have."""

    since: Version
    new: str
    old: str
    """What is done in versions before."""


class Capability(Enum):
    """The things that opsctl has to know of."""

    NO_CGROUPS = Change(since=(24, 5), new="CgroupPlugin=disabled", old="CgroupPlugin=cgroup/v1")
    """slurmd starts on a machine without a tree of cgroups."""
    METRICS = Change(
        since=(25, 11),
        new="of trains by opsctl metrics; of the cluster by slurmctld at its own port, unless the site disabled it",
        old="of trains by opsctl metrics; this Slurm has none of the cluster",
    )
    """Figures for Prometheus."""

    def is_in(self, version: Version) -> bool:
        return version >= self.value.since

    def choose(self, version: Version) -> str:
        """What that version is given."""
        change: Change = self.value
        return change.new if self.is_in(version) else change.old


def parse_version(text: str) -> Version | None:
    """The version in what a program prints, such as `slurm-wlm 22.05.8`; None where there is none."""
    match = NUMBER.search(text)
    return (int(match[1]), int(match[2])) if match else None


def name_of(version: Version) -> str:
    """As Slurm writes it: 22.05."""
    return f"{version[0]}.{version[1]:02}"
