"""Real output of real commands of Slurm 22.05.8, with `\\x1fmark` as the mark, and what it must be read as."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from opsctl.model import Job, JobState, Limits, Node, Partition, Reservation
from opsctl.scheduler import parse

CORPUS = Path(__file__).parents[2] / "corpus"
MARK = "\x1fmark"
HOSTILE = "new\nline | \"quoted\" $(touch owned) 'x'; é漢字 🚂\ttab"


def real(tool: str, case: str) -> str:
    with (CORPUS / tool / "22.05.8" / f"{case}.txt").open(encoding="utf-8", newline="") as file:
        return file.read()


def queue(case: str) -> dict[str, Job]:
    return {job.id: job for job in parse.parse_jobs(real("squeue", case), MARK)}


def test_a_running_task_is_read_field_by_field():
    jobs = [job for job in queue("arrays").values() if job.array == "1" and job.tasks == (1,)]
    began = datetime(2026, 11, 21, 0, 25, 14, tzinfo=UTC)
    assert jobs == [
        Job(
            id=jobs[0].id, array="1", tasks=(1,), name="train", user="root", state=JobState.RUNNING, nodes="node001",
            node_count=1, partition="train", comment="opsctl:train:n1", start=began,
            end=datetime(2026, 11, 21, 0, 35, 14, tzinfo=UTC), submitted=jobs[0].submitted, accrued=jobs[0].accrued,
            exit_code="0:0",
        )
    ]  # fmt: skip
    assert jobs[0].id != "1"


def test_all_waiting_tasks_of_an_array_are_one_row():
    job = queue("arrays")["1"]
    assert (job.array, job.tasks, job.state, job.reason) == ("1", (2, 3, 4), JobState.PENDING, "JobArrayTaskLimit")


def test_a_list_with_steps_is_read_whole():
    assert queue("arrays")["2"].tasks == (1, 3, *range(5, 91, 3))


def test_a_row_in_which_only_some_tasks_are_held_is_not_held():
    mixed = next(job for job in queue("arrays").values() if job.name == "mixed" and job.state is JobState.PENDING)
    assert "JobHeld" in mixed.reason
    assert not mixed.is_held


def test_a_held_array_is_held():
    assert queue("arrays")["2"].is_held


def test_endings_are_told_apart():
    ends = {job.name: (job.state, job.exit_code, job.restarts) for job in queue("ended").values()}
    assert ends["fails"] == (JobState.FAILED, "7:0", 0)
    assert ends["killed"] == (JobState.CANCELLED, "0:15", 0)
    assert ends["again"] == (JobState.RUNNING, "0:0", 1)


def test_names_are_carried_word_for_word():
    jobs = queue("hostile")
    assert [jobs[number].name for number in "12345"] == [
        HOSTILE, "n" * 300, "12\x1f12\x1fN/A\x1fCOMPLETED\x1e12\x1f", "\ufffd\ufffdbad", " "
    ]  # fmt: skip
    assert [jobs[number].comment for number in "135"] == [HOSTILE, "\x1fmar", ""]


def test_what_the_queued_tasks_must_not_get_is_folded():
    assert parse.parse_excluded(real("squeue", "excluded"), MARK) == "node003"


def test_exclusions_of_single_tasks_are_added_up():
    text = f"PENDING{MARK}node[001-002]{MARK}\nPENDING{MARK}node003{MARK}\nRUNNING{MARK}node007{MARK}\n"
    assert parse.parse_excluded(text, MARK) == "node[001-003]"


def test_the_end_is_that_of_the_task_that_runs():
    assert parse.parse_end(real("squeue", "end"), MARK) == datetime(2026, 11, 21, 0, 35, 14, tzinfo=UTC)


def test_every_life_of_a_requeued_job_is_remembered():
    lives = [job for job in parse.parse_past(real("sacct", "lives"), MARK) if job.name == "again"]
    assert [(job.state, job.restarts) for job in lives] == [(JobState.REQUEUED, 0), (JobState.CANCELLED, 1)]
    assert len({job.id for job in lives}) == 1


def test_what_never_ran_had_no_nodes():
    waiting = next(job for job in parse.parse_past(real("sacct", "lives"), MARK) if job.name == "waiting")
    assert (waiting.nodes, waiting.tasks, waiting.start) == ("", tuple(range(1, 10)), None)


def test_nodes_are_read_once_with_all_their_flags():
    assert parse.parse_nodes(real("sinfo", "drained-and-down"), MARK) == [
        Node(name="node001", state="IDLE", address="127.0.0.1"),
        Node(name="node002", state="IDLE", address="127.0.0.1"),
        Node(name="node003", state="IDLE+DRAIN", address="127.0.0.1", reason='opsctl: gpu: "q" | new\nline é'),
        Node(name="node004", state="DOWN", address="127.0.0.1", reason="Kill task failed"),
    ]


def test_partitions_are_read():
    assert parse.parse_partitions(real("scontrol", "partitions")) == [
        Partition(name="train", is_default=True, is_up=True, nodes=4, max_nodes=None, max_minutes=None),
        Partition(name="short", is_default=False, is_up=True, nodes=2, max_nodes=1, max_minutes=30),
        Partition(name="off", is_default=False, is_up=False, nodes=1, max_nodes=None, max_minutes=None),
    ]


def test_a_partition_has_a_qos_or_none():
    line = "PartitionName={} AllowQos=ALL Default=NO QoS={} MaxNodes=UNLIMITED MaxTime=01:00:00 State=UP TotalNodes=1\n"
    found = parse.parse_partitions(line.format("a", "part") + line.format("b", "N/A"))
    assert [each.qos for each in found] == ["part", ""]


def test_what_accounting_binds_is_read():
    said = {
        word: parse.parse_limits(f"AccountingStorageEnforce = {word}\n").enforced for word in ("limits,qos", "none")
    }
    assert said == {"limits,qos": ("limits", "qos"), "none": ()}


def test_limits_are_read():
    assert parse.parse_limits(real("scontrol", "config")) == Limits(
        version="22.05.8", cluster="probe", max_array_size=1001, priority="priority/multifactor", accounting=False
    )


def test_the_name_of_a_cluster_before_the_first_row_does_not_hide_it():
    text = "CLUSTER: big\n" + real("squeue", "hostile")
    assert len(parse.parse_jobs(text, MARK)) == 5


def test_a_row_that_makes_no_sense_does_not_hide_the_others():
    good = real("squeue", "hostile")
    bad = MARK.join(["x"] * len(parse.SQUEUE_FIELDS)) + MARK
    assert len(parse.parse_jobs(bad + "\n" + good, MARK)) == 5


def test_reservations_are_read_field_by_field():
    maintenance, mine = parse.parse_reservations(real("scontrol", "reservations"))
    assert maintenance == Reservation(
        name="maint", start=datetime(2026, 11, 21, 7, 36, 52, tzinfo=UTC),
        end=datetime(2026, 11, 21, 8, 36, 52, tzinfo=UTC), nodes="node[001-002]", node_count=2, users=("root",),
        flags=("MAINT", "IGNORE_JOBS", "SPEC_NODES", "ALL_NODES"),
    )  # fmt: skip
    assert (mine.name, mine.nodes, mine.accounts) == ("mine", "node001", ())


def test_where_nothing_is_reserved_there_is_no_reservation():
    assert parse.parse_reservations("No reservations in the system\n") == []
