"""The limits of a sandbox, and the text of its configuration files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.base.errors import InputError
from opsctl.sandbox.loopback import Network
from opsctl.sandbox.slurm_conf import Auth, SandboxSite, SandboxSpec, cgroup_conf, gres_conf, slurm_conf, slurmdbd_conf

NETWORK = Network(address="127.0.0.1", parameters=(), confined=True)
SITE = SandboxSite(
    home=Path("/h"),
    run=Path("/r"),
    host="here",
    user="me",
    version=(22, 5),
    first_port=21000,
    auth=Auth.MUNGE,
    network=NETWORK,
    shared=False,
)


@pytest.mark.parametrize("name", ["", "../up", "a/b", "-x", "A", "a b", "a\n", "é", "x" * 33, "$(id)", ".", "a;b"])
def test_hostile_name_is_refused(name: str) -> None:
    with pytest.raises(InputError) as exception_info:
        SandboxSpec(name=name)
    assert exception_info.value.message == f"sandbox name {name!r} is not allowed"


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"nodes": 0}, "--nodes is 0, needs 1 to 512"),
        ({"nodes": 513}, "--nodes is 513, needs 1 to 512"),
        ({"gpus_per_node": -1}, "--gpus-per-node is -1, needs 0 to 16"),
    ],
)
def test_impossible_size_is_refused(size: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as exception_info:
        SandboxSpec(**size)  # type: ignore[arg-type]  # the parameters are numbers
    assert exception_info.value.message == message


def test_every_node_has_its_own_port() -> None:
    text = slurm_conf(SandboxSpec(nodes=12, gpus_per_node=8), SITE)
    assert "NodeName=node[001-012] NodeHostname=here NodeAddr=127.0.0.1 Port=[21002-21013]" in text
    assert "Gres=gpu:8" in text


def test_single_node_has_no_brackets_and_no_gres() -> None:
    text = slurm_conf(SandboxSpec(nodes=1), SITE)
    assert "NodeName=node001 NodeHostname=here NodeAddr=127.0.0.1 Port=21002 " in text
    assert "gres" not in text.lower()
    assert gres_conf(SandboxSpec(nodes=1), SITE) == ""


def test_auth_none_needs_no_munge() -> None:
    site = replace(SITE, auth=Auth.NONE)
    text = slurm_conf(SandboxSpec(accounting=True), site)
    assert "AuthType=auth/none\nCredType=cred/none\n" in text
    assert "munge" not in text + slurmdbd_conf(site)


@pytest.mark.parametrize(
    ("version", "plugin"),
    [((22, 5), "cgroup/v1"), ((23, 11), "cgroup/v1"), ((24, 5), "disabled"), ((25, 11), "disabled")],
)
def test_cgroups_are_disabled_where_possible(version: tuple[int, int], plugin: str) -> None:
    assert cgroup_conf(version) == f"CgroupPlugin={plugin}\n"


def test_spec_is_described_in_words() -> None:
    assert SandboxSpec(nodes=1, gpus_per_node=1).describe() == "1 node of 1 GPU"
    assert SandboxSpec(nodes=8, accounting=True, fast=True).describe() == "8 nodes, accounting, fast timers"
