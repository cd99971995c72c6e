"""What each version of Slurm is given."""

from __future__ import annotations

import pytest

from opsctl.capabilities import OLDEST, Capability, format_version, parse_version
from tests.versions import VERSIONS


@pytest.mark.parametrize(
    ("version", "plugin"),
    [((22, 5), "cgroup/v1"), ((23, 11), "cgroup/v1"), ((24, 5), "disabled"), ((26, 5), "disabled")],
)
def test_a_version_gets_the_plugin_that_it_has(version, plugin):
    assert Capability.NO_CGROUPS.choose(version) == f"CgroupPlugin={plugin}"


@pytest.mark.parametrize(
    ("text", "version"),
    [("slurm-wlm 22.05.8", (22, 5)), ("26.05.5\n", (26, 5)), ("25.11.2", (25, 11)), ("late", None), ("", None)],
)
def test_a_version_is_found_in_what_a_program_prints(text, version):
    assert parse_version(text) == version


def test_a_version_is_written_as_slurm_writes_it():
    assert format_version(OLDEST) == "22.05"


@pytest.mark.parametrize("capability", Capability)
def test_a_recorded_version_lies_on_either_side_of_each_change(capability):
    recorded = [parse_version(version) for version in VERSIONS]
    assert {capability.is_in(version) for version in recorded if version} == {True, False}
