"""Capabilities of Slurm versions."""

import pytest

from opsctl.base.capabilities import OLDEST, choose_cgroup_plugin, format_version, parse_version
from tests.versions import VERSIONS


@pytest.mark.parametrize(
    ("version", "plugin"),
    [((22, 5), "cgroup/v1"), ((23, 11), "cgroup/v1"), ((24, 5), "disabled"), ((26, 5), "disabled")],
)
def test_plugin_depends_on_the_version(version, plugin):
    assert choose_cgroup_plugin(version) == f"CgroupPlugin={plugin}"


@pytest.mark.parametrize(
    ("text", "version"),
    [("slurm-wlm 22.05.8", (22, 5)), ("26.05.5\n", (26, 5)), ("25.11.2", (25, 11)), ("late", None), ("", None)],
)
def test_version_is_parsed(text, version):
    assert parse_version(text) == version


def test_version_is_formatted_like_slurm():
    assert format_version(OLDEST) == "22.05"


def test_recorded_versions_cover_both_sides_of_the_change():
    recorded = [parse_version(version) for version in VERSIONS]
    assert len({choose_cgroup_plugin(version) for version in recorded if version}) == 2
