"""Node lists from any source: a request of a team member may hold any text."""

import os
import subprocess
import sys

import pytest

from opsctl.base.errors import InputError
from opsctl.base.nodesets import expand, fold, nodeset, union


@pytest.mark.parametrize("text", ["@g;touch${IFS}$M", "@*"])
def test_group_name_never_reaches_a_shell(tmp_path, text):
    """ClusterShell looks up groups with configured commands, in which it substitutes the group's name."""
    (tmp_path / "groups.conf").write_text(
        "[Main]\ndefault: slurm\n[slurm]\nmap: echo node1 $GROUP; touch $M\nall: echo node1; touch $M\nlist: echo g\n"
    )
    env = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path), "M": str(tmp_path / "ran")}
    program = (
        "import sys; from contextlib import suppress; from opsctl.base.errors import InputError\n"
        "from opsctl.base.nodesets import *\n"
        "with suppress(InputError): nodeset(sys.argv[1])\n"
        "with suppress(InputError): union([sys.argv[1]])\n"
        "fold([sys.argv[1]])"
    )
    subprocess.run([sys.executable, "-c", program, text], env=env, check=True, timeout=250)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text",
    ["node1;touch x", "-oProxyCommand=x", "node1\n", "é1", "node[1-2", "node[1--2]", "[1]", f"a[1-2]b[3-4]{1 << 64}"],
)
def test_text_that_is_no_node_list_is_refused(text):
    with pytest.raises(InputError, match="is not a node list"):
        nodeset(text)


def test_huge_node_list_is_refused_unexpanded():
    for text in ("node[1-999999999]", "a[1-9999]b[1-9999]", "x,y[1-60000],z[1-60000]"):
        with pytest.raises(InputError, match="names more than 100000 nodes"):
            nodeset(text)


def test_lists_are_joined_expanded_and_folded():
    assert expand("node[001-002],login1") == ["login1", "node001", "node002"]
    assert str(union(["node[1-2]", "node3", ""])) == "node[1-3]"
    assert fold(["node2", "node1", "node2"]) == "node[1-2]"
