"""slurmdbd and MariaDB, where they are installed."""

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.base.model import JobSpec
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.launch.render import directives
from opsctl.preflight.checks import accounting
from opsctl.preflight.facts import Facts
from opsctl.preflight.gather_facts import gather_cluster
from opsctl.preflight.problem import LaunchRequest, ProblemSeverity
from opsctl.preflight.recipe import Recipe
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec
from opsctl.state.journal import actor
from tests.support.cases import read_table
from tests.support.slurms import Up, run_slurm, wait_until
from tests.support.trains import HELD, Trains, trains_on, until

pytestmark = pytest.mark.usefixtures("_accounting")


def test_sacct_reports_a_job_and_the_next_sandbox_is_empty(fresh_slurm: Up, places: Places) -> None:
    first = fresh_slurm(accounting=True)
    job = run_slurm(first, "sbatch", "--parsable", "--account=train", "--output=/dev/null", "--wrap=exit 3").strip()
    sacct = ("sacct", "-nXP", "-j", job, "-o", "Account,State,ExitCode")
    wait_until(lambda: "FAILED" in run_slurm(first, *sacct))
    assert run_slurm(first, *sacct) == "train|FAILED|3:0\n"
    first.down()
    templates = list(places.cache.iterdir())
    second = fresh_slurm(accounting=True)
    assert list(places.cache.iterdir()) == templates
    assert run_slurm(second, "sacct", "-nX") == ""
    assert "train" in run_slurm(second, "sacctmgr", "-nP", "show", "account", "format=account")


# --- limits, and trains beyond them

LIMITS = read_table(__file__, "limits")
"""Three accounts: `open` has no limits, `lone` has limits per user, `llm` has its own and those of its parent."""
NEVER = read_table(__file__, "never")
REFUSED = read_table(__file__, "refused")
FINE = [
    {"account": "llm", "qos": "long", "time_limit": "40"},  # the QOS comes before the association
    {"qos": "quick", "time_limit": "40", "partition": "cpu"},  # the partition's QOS comes before the job's
    {"qos": "gpus", "nodes": 2, "gpus_per_node": 1},
    {"qos": "few", "tasks": 2},
    {"qos": "quick", "time_limit": "10"},
]


@pytest.fixture(scope="module")
def limited(places: Places, _programs: None) -> Iterator[Sandbox]:
    """Two nodes of two GPUs whose accounting enforces LIMITS."""
    spec = SandboxSpec(name=f"limited-{os.getpid()}", nodes=2, gpus_per_node=2, accounting=True, fast=True)
    sandbox = Sandbox.up(spec, places=places, clock=SystemClock(), runner=SystemRunner())
    with sandbox.conf.open("a") as conf:
        conf.write("AccountingStorageEnforce=limits,qos\n")
    sandbox.fault("controller", FaultKind.RESTART)
    argv, env = ("sacctmgr", "--immediate", "--quiet"), {**os.environ, **sandbox.env()}
    text = LIMITS.format(user=sandbox.record.site.user)
    done = subprocess.run(argv, input=text, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert not re.search("error|Unknown|Nothing", done.stdout + done.stderr, re.IGNORECASE), done
    run_slurm(sandbox, "scontrol", "update", "partitionname=cpu", "qos=part")
    yield sandbox
    sandbox.down(grace=0.2)


@pytest.fixture
def trains(limited: Sandbox) -> Iterator[Trains]:
    with trains_on(limited) as trains:
        yield trains


def make_spec(**changed: object) -> JobSpec:
    fields: dict[str, object] = {
        "name": "probe",
        "nodes": 1,
        "processes_per_node": 1,
        "cpus_per_process": 1,
        "time_limit": "5",
        "tasks": 1,
        "account": "open",
        "memory_per_node": "10",
    }
    return JobSpec(**{**fields, **changed})  # type: ignore[arg-type]  # fields of a JobSpec


def find_errors(facts: Facts, spec: JobSpec) -> list[str]:
    request = LaunchRequest(train=None, spec=spec, recipe=Recipe())  # type: ignore[arg-type]  # these checks read no train
    checks = (accounting.account, accounting.qos, accounting.limits)
    problems = itertools.chain.from_iterable(check(request, facts) for check in checks)
    return [problem.what for problem in problems if problem.severity is ProblemSeverity.ERROR]


def sbatch(spec: JobSpec, *more: str) -> subprocess.CompletedProcess[str]:
    argv = ("sbatch", "--parsable", "--output=/dev/null", *directives(spec), *more, "--wrap=true")
    return subprocess.run(argv, capture_output=True, text=True, timeout=250, check=False)


def test_slurm_enforces_the_limits_that_preflight_reports(trains: Trains, limited: Sandbox) -> None:
    app = trains.app
    facts = Facts(now=app.clock.now(), user=actor(), cluster=gather_cluster(app.slurm, make_spec(), actor()))
    reasons = {}
    for changed, message, reason in NEVER:
        (error,) = find_errors(facts, make_spec(**changed))
        assert message in error
        reasons[sbatch(make_spec(**changed)).stdout.strip()] = reason
    for changed, message, reason in REFUSED:
        (error,) = find_errors(facts, make_spec(**changed))
        assert message in error
        assert reason in sbatch(make_spec(**changed)).stderr
    fine = []
    for changed in FINE:
        assert find_errors(facts, make_spec(**changed)) == []
        fine.append(sbatch(make_spec(**changed)).stdout.strip())

    def read_states() -> dict[str, str]:
        lines = run_slurm(limited, "squeue", "-h", "--states=all", "--Format=ArrayJobID:|,State:|,Reason:|")
        rows = [line.split("|") for line in lines.splitlines()]  # a reason may have spaces
        return {job: why if state == "PENDING" else state for job, state, why, *_ in rows}

    until(lambda: {job: read_states().get(job) for job in reasons} == reasons, seconds=150)
    until(lambda: {read_states().get(job, "") for job in fine} == {"COMPLETED"}, seconds=150)
    run_slurm(limited, "scancel", "--name=probe")


def test_limit_of_a_queued_train_is_explained(trains: Trains, limited: Sandbox) -> None:
    path = trains.toml(account="open", extra=HELD)
    trains.opsctl("launch", path)
    run_slurm(limited, "sacctmgr", "--immediate", "modify", "account", "open", "set", "MaxJobs=0")
    trains.opsctl("release", "t")
    words = "waiting for a limit: the running jobs that its account allows a user (AssocMaxJobsLimit)"

    def status_names_the_limit() -> bool:  # while Slurm schedules anew, there is no reason for a moment
        (status,) = json.loads(trains.opsctl("status", "t", "--json"))
        advised = any("says which limits it is beyond by itself" in note for note in status["notes"])
        return [tasks["why"] for tasks in status["waiting"]] == [words] and advised

    until(status_names_the_limit)
    report = json.loads(trains.opsctl("preflight", path, "--json"))
    assert [problem["what"] for problem in report["findings"] if problem["check"] == "limits"] == [
        "[slurm] tasks = 3: account 'open' allows no running job (MaxJobs)"
    ]


def test_without_slurmdbd_limits_are_unknown(
    trains: Trains, limited: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(re.sub("AccountingStoragePort=.*", "AccountingStoragePort=1", limited.conf.read_text()))
    monkeypatch.setenv("SLURM_CONF", str(conf))  # a port on which no slurmdbd listens
    path = trains.toml(account="open", extra=HELD)
    report = json.loads(trains.opsctl("preflight", path, "--json"))
    notes = [problem["what"] for problem in report["findings"] if problem["check"] == "unknown"]
    assert [note for note in notes if "account, QOS and their limits: sacctmgr got no answer" in note]
    trains.opsctl("launch", path)
    assert len(trains.rows()) == 1
