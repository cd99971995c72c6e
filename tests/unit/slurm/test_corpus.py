"""Recorded output and error messages of every Slurm version, and what they are parsed to."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from opsctl.base.errors import NotAllowed, OpsctlError, SlurmError, Unreachable
from opsctl.base.model import DrainReason, Job, JobState, Limits, Node, Partition, Reservation
from opsctl.base.ports import Completed
from opsctl.slurm import parse_output
from opsctl.slurm.slurm_errors import GONE, NOT_PENDING, UNKNOWN_ID, raise_for_error
from tests.support.cases import read_cases
from tests.versions import CORPUS, VERSIONS, recorded, versions_of

MARK = "\x1fmark"
HOSTILE = "new\nline | \"quoted\" $(touch owned) 'x'; é漢字 🚂\ttab"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


def queue(version: str, case: str) -> dict[str, Job]:
    return {job.id: job for job in parse_output.parse_jobs(recorded("squeue", version, case), MARK)}


def named(version: str, case: str, name: str) -> list[Job]:
    return [job for job in queue(version, case).values() if job.name == name]


def test_running_task_is_read_field_by_field(version):
    [job] = [job for job in named(version, "arrays", "train") if job.state is JobState.RUNNING]
    assert replace(job, id="", start=NOW, end=NOW, submitted=NOW, accrued=NOW) == Job(
        id="",
        array="1",
        tasks=(1,),
        name="train",
        user="root",
        state=JobState.RUNNING,
        nodes="node001",
        node_count=1,
        partition="main",
        comment="opsctl:train:n1",
        start=NOW,
        end=NOW,
        submitted=NOW,
        accrued=NOW,
        exit_code="0:0",
    )
    assert job.id != "1"
    assert job.start is not None and job.submitted is not None
    assert job.submitted <= job.start
    assert job.end == job.start + timedelta(minutes=10)


def test_waiting_tasks_of_an_array_are_one_row(version):
    job = queue(version, "arrays")["1"]
    assert (job.array, job.tasks, job.state, job.reason) == ("1", (2, 3, 4), JobState.PENDING, "JobArrayTaskLimit")


def test_task_list_with_steps_is_read(version):
    assert queue(version, "arrays")["2"].tasks == (1, 3, *range(5, 91, 3))


def test_partly_held_row_is_not_held(version):
    [mixed] = [job for job in named(version, "arrays", "mixed") if 2 in job.tasks]
    assert not mixed.is_held


def test_held_array_is_held(version):
    assert queue(version, "arrays")["2"].is_held


def test_ends_are_distinguished(version):
    ends = {job.name: (job.state, job.exit_code, job.restarts) for job in queue(version, "ended").values()}
    assert ends["fails"] == (JobState.FAILED, "7:0", 0)
    assert ends["killed"] == (JobState.CANCELLED, "0:15", 0)
    assert ends["again"] == (JobState.RUNNING, "0:0", 1)


def test_job_that_lost_its_node_is_final(version):
    [lost] = named(version, "node-failed", "lost")
    assert (lost.state, lost.nodes, lost.state.is_final) == (JobState.NODE_FAIL, "node002", True)


def test_names_are_read_unchanged(version):
    jobs = queue(version, "hostile")
    assert [jobs[number].name for number in "12345"] == [
        HOSTILE,
        "n" * 300,
        "12\x1f12\x1fN/A\x1fCOMPLETED\x1e12\x1f",
        "\ufffd\ufffdbad",
        " ",
    ]
    assert [jobs[number].comment for number in "135"] == [HOSTILE, "\x1fmar", ""]


def test_excluded_nodes_are_folded(version):
    assert parse_output.parse_excluded(recorded("squeue", version, "excluded"), MARK) == "node003"


def test_exclusions_of_single_tasks_are_merged():
    text = f"PENDING{MARK}node[001-002]{MARK}\nPENDING{MARK}node003{MARK}\nRUNNING{MARK}node007{MARK}\n"
    assert parse_output.parse_excluded(text, MARK) == "node[001-003]"


def test_end_is_of_the_running_task(version):
    [running] = [job for job in named(version, "arrays", "train") if job.state is JobState.RUNNING]
    assert parse_output.parse_end(recorded("squeue", version, "end"), MARK) == running.end


@pytest.mark.parametrize("version", versions_of("sacct"))
def test_every_attempt_of_a_requeued_job_is_read(version):
    attempts = [
        job for job in parse_output.parse_past(recorded("sacct", version, "attempts"), MARK) if job.name == "again"
    ]
    assert [(job.state, job.restarts) for job in attempts] == [(JobState.REQUEUED, 0), (JobState.CANCELLED, 1)]
    assert len({job.id for job in attempts}) == 1


@pytest.mark.parametrize("version", versions_of("sacct"))
def test_job_that_never_ran_has_no_nodes(version):
    past = parse_output.parse_past(recorded("sacct", version, "attempts"), MARK)
    [waiting] = [job for job in past if job.name == "waiting"]
    assert (waiting.nodes, waiting.tasks, waiting.start) == ("", tuple(range(1, 10)), None)


def test_nodes_are_read_once_with_all_flags(version):
    assert parse_output.parse_nodes(recorded("sinfo", version, "drained-and-down"), MARK) == [
        Node(name="node001", state="IDLE", address="127.0.0.1"),
        Node(name="node002", state="IDLE", address="127.0.0.1"),
        Node(name="node003", state="IDLE+DRAIN", address="127.0.0.1", reason='opsctl: gpu: "q" | new\nline é'),
        Node(name="node004", state="DOWN", address="127.0.0.1", reason="Kill task failed"),
    ]


def test_drain_reasons_are_read_with_their_user(version):
    reasons = parse_output.parse_reasons(recorded("sinfo", version, "reasons"), MARK)
    assert [replace(reason, at=None) for reason in reasons] == [
        DrainReason(node="node003", text='opsctl: gpu: "q" | new\nline é', by="root", at=None),
        DrainReason(node="node004", text="Kill task failed", by="root", at=None),
    ]
    assert None not in [reason.at for reason in reasons]


def test_partitions_are_read(version):
    assert parse_output.parse_partitions(recorded("scontrol", version, "partitions")) == [
        Partition(name="main", is_default=True, is_up=True, nodes=4, max_nodes=None, max_minutes=1440),
        Partition(name="cpu", is_default=False, is_up=True, nodes=1, max_nodes=None, max_minutes=60),
        Partition(name="short", is_default=False, is_up=True, nodes=2, max_nodes=1, max_minutes=30),
        Partition(name="off", is_default=False, is_up=False, nodes=1, max_nodes=None, max_minutes=None),
    ]


def test_partition_has_a_qos_or_none():
    line = "PartitionName={} AllowQos=ALL Default=NO QoS={} MaxNodes=UNLIMITED MaxTime=01:00:00 State=UP TotalNodes=1\n"
    partitions = parse_output.parse_partitions(line.format("a", "part") + line.format("b", "N/A"))
    assert [partition.qos for partition in partitions] == ["part", ""]


def test_accounting_enforcement_is_read():
    enforced = {
        word: parse_output.parse_limits(f"AccountingStorageEnforce = {word}\n").enforced
        for word in ("limits,qos", "none")
    }
    assert enforced == {"limits,qos": ("limits", "qos"), "none": ()}


def test_limits_are_read(version):
    assert parse_output.parse_limits(recorded("scontrol", version, "config")) == Limits(
        version=version,
        cluster="sandbox",
        max_array_size=1001,
        priority="priority/multifactor",
        accounting=False,
        has_epilog=False,
    )


@pytest.mark.parametrize(*read_cases(__file__, "epilog_of_the_nodes_is_read"))
def test_epilog_of_the_nodes_is_read(line, has_epilog):
    assert parse_output.parse_limits(f"{line}\n").has_epilog is has_epilog


def test_cluster_name_before_the_rows_is_skipped(version):
    text = "CLUSTER: big\n" + recorded("squeue", version, "hostile")
    assert len(parse_output.parse_jobs(text, MARK)) == 5


def test_invalid_row_does_not_hide_the_others(version):
    good = recorded("squeue", version, "hostile")
    bad = MARK.join(["x"] * len(parse_output.SQUEUE_FIELDS)) + MARK
    assert len(parse_output.parse_jobs(bad + "\n" + good, MARK)) == 5


def test_reservations_are_read_field_by_field(version):
    maintenance, mine = parse_output.parse_reservations(recorded("scontrol", version, "reservations"))
    assert replace(maintenance, start=NOW, end=NOW) == Reservation(
        name="maint",
        start=NOW,
        end=NOW,
        nodes="node[001-002]",
        node_count=2,
        users=("root",),
        flags=("MAINT", "IGNORE_JOBS", "SPEC_NODES"),
    )
    assert maintenance.start is not None and maintenance.end == maintenance.start + timedelta(hours=1)
    assert (mine.name, mine.nodes, mine.accounts) == ("mine", "node001", ())


def test_no_reservations_are_an_empty_list():
    assert parse_output.parse_reservations("No reservations in the system\n") == []


DOWN = [(path.parent.name, path.stem) for path in sorted((CORPUS / "stderr").glob("*/*-down.txt"))]


def failed_command(version: str, case: str, *, code: int = 1) -> Completed:
    return Completed(argv=(case.split("-", 1)[0],), code=code, out="", err=recorded("stderr", version, case))


@pytest.mark.parametrize(("version", "case"), DOWN)
def test_missing_answer_is_unreachable(version, case):
    with pytest.raises(Unreachable) as caught:
        raise_for_error(failed_command(version, case), fine=(GONE, NOT_PENDING, UNKNOWN_ID))
    assert caught.value.exit_code == 75
    assert caught.value.hint == "check that slurmctld is running: opsctl doctor"


@pytest.mark.parametrize("case", ["hold-not-owner", "cancel-not-owner"])
def test_job_of_another_user_is_not_allowed(version, case):
    with pytest.raises(NotAllowed) as caught:
        raise_for_error(failed_command(version, case), fine=(GONE, UNKNOWN_ID))
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("case", "fine"),
    [
        ("hold-finished", (GONE,)),
        ("exclude-while-a-task-runs", (GONE, NOT_PENDING)),
        ("cancel-unknown-id", (GONE, UNKNOWN_ID)),
    ],
)
def test_completed_action_is_no_error(version, case, fine):
    raise_for_error(failed_command(version, case), fine=fine)


@pytest.mark.parametrize(*read_cases(__file__, "refusal_quotes_slurm"))
def test_refusal_quotes_slurm(version, case, message):
    with pytest.raises(SlurmError) as caught:
        raise_for_error(failed_command(version, case), fine=(GONE, NOT_PENDING))
    assert re.fullmatch(message, caught.value.message)
    assert not isinstance(caught.value, NotAllowed | Unreachable)


def test_unknown_field_is_an_error_despite_exit_code_0(version):
    with pytest.raises(SlurmError) as caught:
        raise_for_error(failed_command(version, "squeue-unknown-field", code=0))
    assert caught.value.message == "squeue does not know the field Nosuch"


def test_failure_without_a_message_is_an_error():
    with pytest.raises(OpsctlError, match="scontrol refused: exit code 1 and no message"):
        raise_for_error(Completed(argv=("scontrol",), code=1, out="", err=" \n"), fine=(GONE,))
