"""`opsctl preflight` against a real Slurm: Slurm behaves as preflight predicts."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.base.errors import ConfigError
from opsctl.sandbox.cluster import Sandbox
from opsctl.slurm.batch_options import list_options
from opsctl.state.events import Allowed, Edited, Event
from opsctl.state.journal import Journal
from tests.support.slurms import run_slurm
from tests.support.trains import Trains, trains_on, until

STOPS = ("echo", "{{ stop_request }}")


@pytest.fixture
def sandbox(fresh_slurm: Any) -> Sandbox:
    """Two nodes; at most 10 tasks an array and 60 minutes a job; a maintenance of all nodes in 10 minutes."""
    sandbox: Sandbox = fresh_slurm(nodes=2)
    conf = Path(sandbox.env()["SLURM_CONF"])
    conf.write_text(conf.read_text() + "\nMaxArraySize=11\n")
    run_slurm(sandbox, "scontrol", "reconfigure")
    run_slurm(sandbox, "scontrol", "update", "partitionname=main", "maxtime=60")
    run_slurm(
        sandbox,
        "scontrol",
        "create",
        "reservation",
        "reservationname=service",
        "starttime=now+10minutes",
        "duration=60",
        "nodes=ALL",
        "flags=maint",
        "users=root",
    )
    until(lambda: "MaxArraySize            = 11" in run_slurm(sandbox, "scontrol", "show", "config"))
    return sandbox


@pytest.fixture
def trains(sandbox: Sandbox) -> Iterator[Trains]:
    with trains_on(sandbox) as trains:
        yield trains


def run_preflight(trains: Trains, path: Path) -> list[tuple[str, str]]:
    report = json.loads(trains.opsctl("preflight", path, "--json"))
    return [(problem["severity"], problem["check"]) for problem in report["findings"]]


def test_slurm_does_what_preflight_predicts(trains: Trains, sandbox: Sandbox) -> None:
    broken = trains.toml(command=STOPS, tasks=11, time_limit="90")
    assert run_preflight(trains, broken) == [
        ("error", "partition"),
        ("error", "array-size"),
        ("warning", "reservation"),
    ]
    error = trains.refusal("launch", broken)
    assert isinstance(error, ConfigError)
    assert [problem.splitlines()[0] for problem in error.problems] == [
        "[slurm] time_limit = 90: partition 'main' allows at most 01:00:00",
        "[slurm] tasks = 11: this Slurm takes 10 in one array at most",
    ]
    assert not trains.root.exists()
    refused = subprocess.run(["sbatch", "--array=1-11", "--wrap=true"], capture_output=True, text=True, check=False)
    assert "Invalid job array specification" in refused.stderr

    late = trains.toml(command=STOPS, tasks=10, time_limit="30", extra=())
    assert run_preflight(trains, late) == [("warning", "reservation")]
    text = trains.opsctl("launch", late, "--dry-run")
    assert "t: warning: [slurm] time_limit = 30: reservation 'service' takes node[001-002] from" in text
    text = trains.opsctl("launch", late)
    assert "of 2 nodes 0 are left, but 1 are needed" in text
    until(lambda: "maintenance" in run_slurm(sandbox, "squeue", "-h", "-o", "%r"))
    trains.opsctl("cancel", "t")

    assert run_preflight(trains, trains.toml(command=STOPS, time_limit="5")) == []
    assert run_preflight(trains, trains.toml(command=STOPS, reservation="gone")) == [("error", "reservation")]


def journal_events(trains: Trains) -> list[Event]:
    return Journal(trains.run(), trains.app.clock).events()


def test_allowed_error_is_launched_and_journalled(trains: Trains) -> None:
    broken = trains.toml(command=STOPS, more="[environment]\nHF_TOKEN = 'x'")
    error = trains.refusal("launch", broken)
    assert error.hint is not None and error.hint.endswith("if you know better: --allow secrets")
    trains.opsctl("launch", broken, "--allow", "secrets")
    (allowed,) = [event for event in journal_events(trains) if isinstance(event, Allowed)]
    assert (allowed.check, allowed.origin) == ("secrets", "--allow")
    assert "HF_TOKEN" in allowed.what
    changed = trains.toml(command=(*STOPS, "again"), more="[environment]\nHF_TOKEN = 'x'")
    assert "HF_TOKEN" in trains.refusal("edit", "t", changed).message
    trains.opsctl("edit", "t", changed, "--allow", "secrets")
    assert [type(event) for event in journal_events(trains)][-2:] == [Edited, Allowed]


def test_feature_that_no_node_has_is_refused(trains: Trains, sandbox: Sandbox) -> None:
    run_slurm(sandbox, "scontrol", "update", "nodename=node001", "availablefeatures=a100,rack1")
    assert trains.app.slurm.features() == {"a100", "rack1"}
    assert run_preflight(trains, trains.toml(command=STOPS, constraint="a100&rack1")) == []
    assert run_preflight(trains, trains.toml(command=STOPS, constraint="h100")) == [("error", "constraint")]
    assert "Invalid feature specification" in run_sbatch("-Ch100")


def run_sbatch(*options: str) -> str:
    """Return the error message of sbatch."""
    argv = ["sbatch", *options, "--wrap=true"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stderr


def test_abbreviations_are_those_of_sbatch(trains: Trains) -> None:
    """sbatch lists the options that an ambiguous prefix may stand for."""
    assert trains.root
    unknown: set[str] = set()
    for letter in "abcdegmnopqrstuvw":
        (option,) = list_options(f"--{letter}")
        listed = set(re.findall(r"'--([\w-]+)'", run_sbatch(f"--{letter}").partition("possibilities:")[2]))
        assert len(listed) > 1
        unknown |= listed - {"tasks-per-node", "cluster"} - option.names
    assert unknown == set()
