"""Differences between versions of Slurm: since which version a feature exists, and the substitute in older versions.

No other module compares version numbers. Each row has been observed with real binaries before and after the change; the
exact versions are those of Slurm's release notes (docs/explanation/slurm-versions.md).
Rows that opsctl does not use are removed.
"""

import re
from dataclasses import dataclass
from enum import Enum

Version = tuple[int, int]
"""Year and month of a release, such as (22, 5)."""
OLDEST: Version = (22, 5)
"""The oldest version that opsctl supports."""
NUMBER = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One feature that newer versions have."""

    since: Version
    new: str
    old: str
    """The substitute in older versions."""


class Capability(Enum):
    """The features on which opsctl depends."""

    NO_CGROUPS = Change(since=(24, 5), new="CgroupPlugin=disabled", old="CgroupPlugin=cgroup/v1")
    """slurmd starts on a machine without a cgroup hierarchy."""
    METRICS = Change(
        since=(25, 11),
        new="trains: opsctl metrics; cluster: slurmctld on its own port, unless the site disabled the port",
        old="trains: opsctl metrics; cluster: not available in this version of Slurm",
    )
    """Prometheus metrics."""

    def is_in(self, version: Version) -> bool:
        return version >= self.value.since

    def choose(self, version: Version) -> str:
        """Return the text for the version: the feature's or the substitute's."""
        change: Change = self.value
        return change.new if self.is_in(version) else change.old


def parse_version(text: str) -> Version | None:
    """Parse the version in a program's output such as `slurm-wlm 22.05.8`; None where there is no version."""
    match = NUMBER.search(text)
    return (int(match[1]), int(match[2])) if match else None


def format_version(version: Version) -> str:
    """Format a version as Slurm does: 22.05."""
    return f"{version[0]}.{version[1]:02}"
