"""The limits that hold for a job, as in Slurm's resource limits guide."""

import pytest

from opsctl.base.model import Accounting, Association, JobSpec, Qos
from opsctl.preflight.effective_limits import find_job_qos, find_limits
from tests.unit.preflight.test_slurm_checks import partition

SPEC = JobSpec(name="t", nodes=1, processes_per_node=1, cpus_per_process=1, time_limit="5", tasks=1, account="llm")
NAMED = JobSpec(
    name="t", nodes=1, processes_per_node=1, cpus_per_process=1, time_limit="5", tasks=1, account="llm", qos="mine"
)


def limits(*, of_partition=None, mine=None, user=None, account=None, root=None, flags=()):
    """Return the limits that hold for a job with these bounds of QOS, user and accounts."""
    known = Accounting(
        associations=(
            Association(account="llm", user="me", parent="llm", bounds=user or {}),
            Association(account="llm", parent="root", bounds=account or {}),
            Association(account="root", bounds=root or {}),
        ),
        qos=(Qos(name="part", bounds=of_partition or {}), Qos(name="mine", bounds=mine or {}, flags=flags)),
    )
    return find_limits(NAMED, known, partition("main", qos="part"))


def test_first_limit_counts_from_the_partition_qos_down():
    everywhere = {name: {"MaxWall": n} for n, name in enumerate(("of_partition", "mine", "user", "account"), start=1)}
    holds = []
    while everywhere:
        holds.append(limits(**everywhere).get("MaxWall"))
        del everywhere[next(iter(everywhere))]
    assert holds == [(1, "QOS 'part'"), (2, "QOS 'mine'"), (3, "account 'llm'"), None]


def test_first_qos_that_limits_a_resource_counts():
    bounds = limits(of_partition={"MaxTRES node": 9}, mine={"MaxTRES node": 1, "MaxTRES cpu": 2})
    assert bounds == {"MaxTRES node": (9, "QOS 'part'"), "MaxTRES cpu": (2, "QOS 'mine'")}


def test_over_part_qos_precedes_the_partition_qos():
    both = {"of_partition": {"MaxWall": 1}, "mine": {"MaxWall": 2}}
    assert limits(**both, flags=("OverPartQOS",)) == {"MaxWall": (2, "QOS 'mine'")}


def test_lowest_group_limit_of_accounts_counts():
    wide, narrow = {"GrpTRES node": 8}, {"GrpTRES node": 4}
    assert limits(user=wide, account=wide, root=narrow) == {"GrpTRES node": (4, "account 'root'")}
    assert limits(user=narrow, account=wide) == {"GrpTRES node": (4, "account 'llm'")}
    assert limits(mine=wide, root=narrow) == {"GrpTRES node": (8, "QOS 'mine'")}


@pytest.mark.parametrize("name", ["MaxSubmitPU", "MaxSubmitPA"])
def test_submit_limit_of_a_qos_replaces_the_association(name):
    assert limits(mine={name: 9}, user={"MaxSubmit": 1, "MaxJobs": 0}) == {
        name: (9, "QOS 'mine'"),
        "MaxJobs": (0, "account 'llm'"),
    }


@pytest.mark.parametrize(
    ("default", "allowed", "of_root", "gets"),
    [("a", ("a", "b"), "b", "a"), ("", ("b",), "a", "b"), ("", ("a", "b"), "b", "b"), ("", ("a", "b"), "", "normal")],
)
def test_job_without_a_qos_has_a_default(default, allowed, of_root, gets):
    known = Accounting(
        associations=(
            Association(account="llm", user="me", parent="llm", qos=allowed, default_qos=default),
            Association(account="root", default_qos=of_root),
        ),
        qos=tuple(Qos(name=name) for name in ("a", "b", "normal")),
    )
    assert find_job_qos(SPEC, known, "main").name == gets


def test_association_of_the_partition_comes_first():
    known = Accounting(
        default_account="llm",
        associations=(
            Association(account="llm", user="me", parent="llm", bounds={"MaxWall": 1}),
            Association(account="llm", user="me", partition="cpu", parent="llm", bounds={"MaxWall": 2}),
        ),
    )
    holds = {name: find_limits(SPEC, known, partition(name))["MaxWall"][0] for name in ("main", "cpu")}
    assert holds == {"main": 1, "cpu": 2}
