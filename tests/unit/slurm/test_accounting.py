"""Recorded output of every sacctmgr version, and its parsed form."""

import pytest

from opsctl.base.errors import Unreachable
from opsctl.base.model import Association, Qos
from opsctl.slurm import accounting
from opsctl.slurm.commands import Slurm
from tests.unit.slurm.test_commands import ScriptedRunner
from tests.versions import recorded, versions_of


@pytest.fixture(params=versions_of("sacctmgr"))
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def parsed(version):
    return accounting.parse_accounting(
        "root", {name: recorded("sacctmgr", version, name) for name in ("user", "accounts", "qos")}
    )


def test_association_inherits_limits_of_accounts_above(parsed):
    assert parsed.default_account == "root"
    assert parsed.accounts == ["llm", "root", "train"]
    assert next(association for association in parsed.associations if association.account == "llm") == Association(
        account="llm",
        user="root",
        parent="llm",
        qos=("closed", "deny", "long", "normal", "prod", "short"),
        default_qos="normal",
        bounds={"MaxWall": 30, "MaxTRES node": 3, "MaxJobs": 3, "MaxSubmit": 8},
    )


def test_association_of_one_partition_is_distinguished(parsed):
    mine = [
        (association.partition, association.bounds)
        for association in parsed.associations
        if association.user and association.account == "train"
    ]
    assert sorted(mine) == [("", {}), ("cpu", {"MaxWall": 15})]


def test_account_has_a_parent_and_no_memory_limits(parsed):
    assert next(association for association in parsed.associations if association.account == "team") == Association(
        account="team",
        parent="root",
        qos=("normal",),
        bounds={"GrpTRES cpu": 20, "GrpTRES node": 2, "GrpTRESRunMins cpu": 9999, "GrpJobs": 7, "GrpSubmit": 70},
    )


def test_limits_of_a_qos_are_read(parsed):
    assert {qo.name: qo for qo in parsed.qos}["long"] == Qos(
        name="long",
        flags=("OverPartQOS", "PartitionTimeLimit"),
        bounds={
            "MaxWall": 2880,
            "MaxTRESPerNode gres/gpu": 2,
            "MaxTRESMins cpu": 100000,
            "MaxTRESMins gres/gpu": 6000,
            "GrpTRES cpu": 64,
            "GrpTRESRunMins cpu": 200000,
            "GrpJobs": 4,
            "GrpSubmit": 50,
            "MaxTRESPA node": 3,
            "MaxJobsPA": 9,
            "MaxSubmitPA": 40,
        },
    )
    rest = [qo.bounds for qo in parsed.qos if qo.name in {"short", "prod", "closed", "normal"}]
    assert rest == [
        {},
        {"MaxWall": 10, "MaxTRESPU gres/gpu": 2, "MaxTRESPU node": 2, "MaxSubmitPU": 5},
        {"MinTRES node": 3},
        {"MaxJobsPU": 0},
    ]


def test_invalid_rows_do_not_hide_the_others(version, parsed):
    text = recorded("sacctmgr", version, "qos")
    qos = f"half|a row\n\n{text}short{'|' * (text.splitlines()[0].count('|') - 1)}\nsacctmgr: x\n"
    broken = accounting.parse_accounting("root", {"user": "", "accounts": "||\n", "qos": qos})
    assert (broken.associations, broken.default_account, broken.qos) == ((), "", parsed.qos)


def test_database_that_is_down_is_unreachable(version):
    down = ScriptedRunner(err=recorded("stderr", version, "accounts-database-down"), code=1)
    with pytest.raises(Unreachable, match="sacctmgr got no answer: "):
        Slurm(down).accounting("me", "c")


def test_only_this_cluster_is_asked_for():
    runner = ScriptedRunner()
    assert Slurm(runner).accounting("me", "big").associations == ()
    assert ["cluster=big" in argv for argv in runner.calls] == [True, True, False]
