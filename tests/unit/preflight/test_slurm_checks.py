"""The errors that prevent a launch, as users read them."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from opsctl.base.model import Accounting, Association, Job, JobState, Limits, Node, Partition, Qos
from opsctl.launch.launch_plan import job_spec
from opsctl.preflight.checks import CHECKS
from opsctl.preflight.facts import ClusterFacts, Facts
from opsctl.preflight.problem import LaunchRequest, ProblemSeverity
from opsctl.preflight.problem import judge as judged
from opsctl.preflight.recipe import read_recipe
from opsctl.settings.loader import SiteSettings, TrainSettings, parse
from tests.support.cases import read_cases


def partition(name, **changed):
    facts = {"is_default": False, "is_up": True, "nodes": 4, "max_nodes": None, "max_minutes": None}
    return Partition(name=name, **{**facts, **changed})


def accounting(*accounts):
    """Return the associations of a user with these accounts and no limits."""
    return Accounting(
        associations=tuple(Association(account=account, user="me", parent=account) for account in accounts)
    )


def cluster(**changed):
    """Return four nodes in three partitions, with changes."""
    limits = Limits(
        version="22.05.8",
        cluster="c",
        max_array_size=1001,
        priority="priority/multifactor",
        accounting=True,
        enforced=("associations",),
    )
    three = (
        partition("main", is_default=True),
        partition("short", max_minutes=60, max_nodes=2),
        partition("closed", is_up=False),
    )
    nodes = tuple(Node(name=f"node00{n}", state="IDLE", address="") for n in range(1, 5))
    known = {"partitions": three, "limits": limits, "accounting": accounting("llm", "vision"), "nodes": nodes}
    return ClusterFacts(**{**known, **changed})


def judge(known=None, top=None, after="", **slurm):
    """Return the errors of a train with these changes of [slurm]."""
    table = {"nodes": 2, "time_limit": "30", "tasks": 3, **slurm}
    train = parse(TrainSettings, {"name": "gpt", "command": ["true"], "slurm": table, **(top or {})}, "train.toml")
    request = LaunchRequest(
        train=train, spec=job_spec(train, SiteSettings(root="/trains"), after=after), recipe=read_recipe(train)
    )
    facts = Facts(now=datetime(2026, 1, 1, tzinfo=UTC), user="me", cluster=cluster(**(known or {})))
    problems = judged(CHECKS.values(), request, facts)
    return [problem.what for problem in problems if problem.severity is ProblemSeverity.ERROR]


def test_train_that_fits_has_no_problem():
    assert judge(partition="short", time_limit="60", account="LLM", exclude="node003") == []


@pytest.mark.parametrize(*read_cases(__file__, "problem_names_the_setting_and_the_limit"))
def test_problem_names_the_setting_and_the_limit(slurm, problem):
    assert judge(**slurm) == [problem]


def test_all_problems_are_reported_at_once():
    assert len(judge(nodes=9, tasks=5000, account="math", extra=["--output=x"])) == 4


def test_extra_may_hold_other_options():
    assert judge(extra=["--gres=gpu:a100:8", "--mem=5G"]) == []


def test_one_fitting_partition_is_enough():
    assert judge(partition="closed,short,main", nodes=4) == []
    assert len(judge(partition="closed,short", nodes=4)) == 2


def bounded(**qos):
    """Return facts with enforced limits, and with these QOS, which the user may use."""
    limits = replace(cluster().limits, enforced=("associations", "limits", "qos"))
    association = Association(account="llm", user="me", parent="llm")
    every = tuple(Qos(name=name, **fields) for name, fields in qos.items())
    return {
        "limits": limits,
        "accounting": Accounting(default_account="llm", associations=(association,), qos=every),
        "partitions": (partition("main", is_default=True, max_nodes=2), partition("narrow", qos="narrow")),
    }


def test_fitting_limits_of_one_partition_are_enough():
    known = bounded(narrow={"bounds": {"MaxTRES node": 1}})
    assert judge(known, partition="narrow,main") == []
    assert judge(known, partition="narrow") == [
        "[slurm] nodes = 2: QOS 'narrow' allows 1 for a job (MaxTRES)",
    ]


def test_qos_may_lift_the_partition_limit():
    assert judge(bounded(normal={}), nodes=3) == ["[slurm] nodes = 3: partition 'main' lets a job have 2"]
    assert judge(bounded(normal={"flags": ("PartitionMaxNodes",)}), nodes=3) == []


@pytest.mark.parametrize(
    "extra",
    ["--gres=gpu:a100:8", "--gres gpu:8", "--gres=nvme:1,gpu:8", "--gpus-per-node=h100:8", "--gpus-per-n 8"],
)
def test_gpus_in_extra_are_counted(extra):
    known = bounded(normal={"bounds": {"MaxTRES gres/gpu": 15}})
    (text,) = judge(known, extra=[extra], processes_per_node=8)
    assert text.startswith("[slurm] nodes = 2 of 8 GPUs, gres/gpu=16: QOS 'normal' allows 15 for a job")


def test_partition_is_required_without_a_default():
    known = {"partitions": (partition("a"), partition("b"))}
    assert judge(known) == ["[slurm] partition: none is set, and this cluster has no default; there are: a, b"]


def test_any_account_is_valid_without_accounting():
    assert judge({"accounting": None}, account="math") == []


def test_user_without_an_account_gets_an_error():
    assert judge({"accounting": accounting()}, account="math") == [
        "[slurm] account: you may not use 'math'; you have: none"
    ]


def test_after_an_unknown_job_is_an_error():
    other = Job(id="13", array="12", tasks=(1,), name="x", user="me", state=JobState.RUNNING)
    assert {job: judge({"jobs": (other,)}, after=job) for job in ("12", "12_3", "13", "14")} == {
        "12": [],
        "12_3": [],
        "13": [],
        "14": ["--after 14: no such job in the queue, so the train would start at once"],
    }


@pytest.mark.parametrize("name", ["HF_TOKEN", "TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"])
def test_secret_in_the_environment_is_an_error(name):
    assert judge(top={"environment": {name: "x"}}) == [
        f"[environment] {name}: every user could read the value in body.sh"
    ]


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "KEYS"])
def test_harmless_names_are_no_secrets(name):
    assert judge(top={"environment": {name: "x"}}) == []
