"""Differences between versions of Slurm. No other module compares version numbers.

Each has been observed with real binaries before and after the change; the exact versions are those of Slurm's release
notes (docs/explanation/slurm-versions.md).
"""

import re

Version = tuple[int, int]
"""Year and month of a release, such as (22, 5)."""
OLDEST: Version = (22, 5)
"""The oldest version that opsctl supports."""
NUMBER = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)


def choose_cgroup_plugin(version: Version) -> str:
    """Return the line of cgroup.conf with which slurmd starts on a machine without a cgroup hierarchy."""
    return "CgroupPlugin=disabled" if version >= (24, 5) else "CgroupPlugin=cgroup/v1"


def parse_version(text: str) -> Version | None:
    """Parse the version in a program's output such as `slurm-wlm 22.05.8`; None where there is no version."""
    match = NUMBER.search(text)
    return (int(match[1]), int(match[2])) if match else None


def format_version(version: Version) -> str:
    """Format a version as Slurm does: 22.05."""
    return f"{version[0]}.{version[1]:02}"
