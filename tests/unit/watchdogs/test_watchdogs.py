"""Nodes, cron, the words of waiting, isolation, the registry: what needs no Slurm to be judged."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.cli.watch import watch
from opsctl.errors import OpsctlError
from opsctl.host.isolation import Failed, Isolation
from opsctl.host.system import SystemClock
from opsctl.launch.wait_reasons import WaitKind, classify_wait
from opsctl.model import JobState, Level, Node
from opsctl.state.journal import EventKind
from opsctl.watchdogs import WATCHDOGS, pulse_log
from opsctl.watchdogs.node_health import worst_severity
from opsctl.watchdogs.slurm_status import find_related_jobs
from tests.support.watch_context import T0, Stage, job, waiting

ROOT = Path(__file__).parents[3]


# --- nodes


@pytest.mark.parametrize(
    ("state", "level"),
    [
        ("IDLE", Level.OK),
        ("MIXED", Level.OK),
        ("ALLOCATED+PLANNED", Level.OK),
        ("ALLOCATED+DRAIN", Level.WARNING),
        ("ALLOCATED*", Level.WARNING),
        ("MIXED+NOT_RESPONDING", Level.WARNING),
        ("DOWN", Level.CRITICAL),
        ("DOWN+DRAIN", Level.CRITICAL),
        ("IDLE+DRAIN+FAIL", Level.CRITICAL),
        ("WHATEVER", Level.OK),
    ],
)
def test_states_of_nodes(state: str, level: Level) -> None:
    assert worst_severity(state) is level


def test_only_the_nodes_of_the_train_are_looked_at(stage: Stage) -> None:
    stage.start_job(nodes="n[1-2]")
    stage.nodes = tuple(Node(name=f"n{n}", state="DOWN" if n > 1 else "MIXED", address="a") for n in (1, 2, 3))
    assert [finding.key for finding in stage.judge_all("node_health")] == ["node_health/gpt", "node_health/gpt/n2"]


def test_a_node_that_slurm_does_not_list_is_unknown(stage: Stage) -> None:
    stage.start_job(nodes="n[1-2]")
    stage.nodes = (Node(name="n1", state="MIXED", address="a"),)
    assert stage.judge("node_health").level is Level.UNKNOWN


@pytest.mark.parametrize(("health", "level"), [("faulty", Level.CRITICAL), ("degraded", Level.WARNING)])
def test_what_the_last_look_found_of_a_node_is_told_for_a_day(stage: Stage, health: str, level: Level) -> None:
    stage.start_job(nodes="n[1-3]")
    stage.nodes = tuple(Node(name=f"n{n}", state="MIXED", address="a") for n in (1, 2, 3))
    looks = stage.place / ".site" / "nodes" / "node"
    looks.mkdir(parents=True)
    for node, hours, found in (("n1", 1, health), ("n2", 1, "healthy"), ("n3", 25, "faulty")):
        at = (T0 - timedelta(hours=hours)).timestamp()
        (looks / f"{node}.json").write_text(json.dumps({"node": node, "at": at, "health": found, "evidence": ["ECC"]}))
    _, finding = stage.judge_all("node_health")
    assert (finding.key, finding.level, finding.evidence) == ("node_health/gpt/n1", level, ("ECC",))
    assert finding.summary == f"n1 under gpt is {health}: ECC"


def test_nodes_that_slurm_says_nothing_of_are_unknown(stage: Stage) -> None:
    stage.nodes = None
    assert stage.judge("node_health").level is Level.UNKNOWN


# --- cron


def test_a_cron_that_nobody_started_is_no_alarm(stage: Stage) -> None:
    assert stage.judge("cron_alive").summary == "cron: not started"


def test_a_tick_that_does_not_come_is_told(stage: Stage) -> None:
    driver = stage.place / ".site/cron/driver"
    driver.mkdir(parents=True)
    (driver / "wanted.json").write_text("{}")
    assert stage.judge("cron_alive").level is Level.WARNING
    (driver.parent / "last-tick").write_text(f"{T0.timestamp():.0f}\n")
    assert stage.judge("cron_alive", after=timedelta(minutes=29)).level is Level.OK
    finding = stage.judge("cron_alive", after=timedelta(minutes=2))
    assert (finding.level, finding.summary) == (Level.CRITICAL, "cron: no tick for 31 min (limit 30 min)")
    (driver / "wanted.json").unlink()
    assert stage.judge("cron_alive").level is Level.OK


def test_a_tick_by_a_clock_that_is_ahead_is_a_tick(stage: Stage) -> None:
    place = stage.place / ".site/cron"
    (place / "driver").mkdir(parents=True)
    (place / "driver/wanted.json").write_text("{}")
    (place / "last-tick").write_text(f"{T0.timestamp() + 90:.0f}\n")
    assert stage.judge("cron_alive").level is Level.OK


# --- waiting


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Priority", WaitKind.FINE),
        ("(Resources)", WaitKind.FINE),
        ("JobArrayTaskLimit", WaitKind.FINE),
        ("None", WaitKind.FINE),
        ("JobHeldUser", WaitKind.HELD),
        ("JobHeldAdmin", WaitKind.ADMIN),
        ("DependencyNeverSatisfied", WaitKind.NEVER),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", WaitKind.BLOCKED),
        ("PartitionDown", WaitKind.BLOCKED),
        ("AssocGrpNodeLimit", WaitKind.BLOCKED),
        ("QOSMaxJobsPerUserLimit", WaitKind.BLOCKED),
        ("AssocMaxWallDurationPerJobLimit", WaitKind.NEVER),
        ("QOSMaxNodePerJobLimit", WaitKind.NEVER),
        ("launch failed requeued held", WaitKind.FAILED),
        ("SomethingNew", WaitKind.UNKNOWN),
    ],
)
def test_reasons_are_told_apart(reason: str, kind: WaitKind) -> None:
    assert classify_wait(waiting(reason)) is kind


def test_a_word_that_nobody_knows_is_unknown_when_it_lasts(stage: Stage) -> None:
    stage.jobs = (waiting("SomethingNew"),)
    assert stage.judge("slurm_status").level is Level.OK
    assert stage.judge("slurm_status", after=timedelta(minutes=31)).level is Level.UNKNOWN


def test_a_limit_of_the_account_is_told_when_it_lasts_and_slurm_has_no_start_for_it(stage: Stage) -> None:
    stage.jobs = (waiting("AssocGrpNodeLimit"),)
    stage.judge("slurm_status")
    assert stage.judge("slurm_status", after=timedelta(minutes=31)).level is Level.WARNING
    stage.jobs = (waiting("AssocGrpNodeLimit", start=T0 + timedelta(days=1)),)
    assert stage.judge("slurm_status").level is Level.OK


def test_what_slurm_could_not_start_is_told_at_once(stage: Stage) -> None:
    stage.jobs = (waiting("launch failed requeued held"),)
    finding = stage.judge("slurm_status")
    assert (finding.level, finding.summary) == (
        Level.CRITICAL,
        "gpt: 7 could not be started: launch failed requeued held",
    )


def test_that_the_next_array_will_never_start_is_told_while_this_one_runs(stage: Stage) -> None:
    stage.jobs = (job(start=T0), waiting("DependencyNeverSatisfied"))
    assert stage.judge("slurm_status").level is Level.WARNING


def test_a_state_that_nobody_knows_is_neither_running_nor_ended(stage: Stage) -> None:
    stage.jobs = (job(state=JobState.UNKNOWN),)
    assert stage.judge("slurm_status").level is Level.UNKNOWN


def test_a_node_that_does_not_clean_up_is_told(stage: Stage) -> None:
    stage.jobs = (job(state=JobState.COMPLETING, end=T0),)
    assert stage.judge("slurm_status", after=timedelta(minutes=29)).level is Level.OK
    assert stage.judge("slurm_status", after=timedelta(minutes=2)).level is Level.WARNING


def test_a_submission_that_was_cut_off_is_unknown_for_ten_minutes(stage: Stage) -> None:
    stage.journal.append(EventKind.SUBMITTING, nonce="m", tasks=3, after="")
    assert stage.judge("slurm_status", after=timedelta(minutes=9)).level is Level.UNKNOWN
    assert stage.judge("slurm_status", after=timedelta(minutes=2)).level is Level.CRITICAL


def test_a_train_whose_last_step_is_done_is_no_alarm(stage: Stage) -> None:
    stage.journal.append(EventKind.ATTEMPT_STARTED, attempt="7_1.0", nodes="n1")
    stage.journal.append(
        EventKind.ATTEMPT_FINALIZED,
        attempt="7_1.0",
        outcome="finished",
        action="cancel-queued",
        why="the last step is done",
    )
    assert stage.judge("slurm_status").summary == "gpt: finished: the last step is done"
    stage.journal.append(EventKind.CANCELLED, job="7", why="7_1.0 finished: the last step is done")
    assert stage.judge("slurm_status").summary == "gpt: 7_1.0 finished: the last step is done"
    stage.journal.append(EventKind.CANCELLED, job="8", why="opsctl cancel")
    assert stage.judge("slurm_status").summary.endswith(": opsctl cancel")


def test_a_job_array_that_is_not_the_trains_is_no_sign_of_it(stage: Stage) -> None:
    stage.jobs = (job(comment="opsctl:gpt:another", name="gpt"),)
    assert stage.judge("slurm_status").level is Level.CRITICAL


# --- pulse


def test_pulse_lines_are_those_of_the_chronicles() -> None:
    later = job(
        state=JobState.PENDING,
        id="682842",
        array="682842",
        tasks=(1, 2, 3, 4, 5),
        name="tr1-13B-round3",
        reason="Priority",
        partition="gpu_p13",
        nodes="",
        start=T0 + timedelta(days=3, hours=7),
    )
    runs = job(name="tr1", start=T0 - timedelta(days=2, hours=15), nodes="node-[1-63]")
    held = waiting("Dependency")
    when = T0.astimezone()
    lines = [line.partition("PULSE: ")[2] for line in pulse_log.lines("tr1", (later, runs, held), T0)]
    start = later.start.astimezone() if later.start else when
    assert lines == [
        f"tr1-13B-round3 is scheduled to start in 3d 7h (at {start:%Y-%m-%dT%H:%M:%S})"
        " (682842_[1-5%1] on 'gpu_p13' partition)",
        f"tr1 is running for 2-15:00:00 since {when - timedelta(days=2, hours=15):%Y-%m-%dT%H:%M:%S}"
        " (7_1 on 'gpu' partition (node-[1-63])",
        "gpt is waiting for the previous job to finish before scheduling a new one using the dependency mechanism"
        " (7_[2-3%1] on 'gpu' partition)",
    ]
    assert pulse_log.lines("tr1", (), T0)[0].startswith(
        f"[{when:%Y-%m-%d %H:%M:%S}] PULSE: ***ALERT: tr1 is not RUNNING"
    )


def test_a_pulse_is_written_when_something_changes_and_every_ten_minutes(stage: Stage) -> None:
    stage.start_job()
    for _ in range(601):
        stage.judge("slurm_status", after=timedelta(seconds=2))
    stage.jobs = ()
    stage.judge("slurm_status")
    assert len((stage.run.logs / "pulse.log").read_text().splitlines()) == 4
    assert not stage.run.main_log.exists()


# --- holds


def test_a_hold_is_as_old_as_it_is_and_not_as_old_as_the_first_look_at_it(stage: Stage) -> None:
    stage.journal.append(EventKind.HELD, jobs=["7"], why="maintenance")
    stage.jobs = (waiting("JobHeldUser"),)
    finding = stage.judge("held", after=timedelta(hours=13))
    assert (finding.level, finding.summary) == (
        Level.WARNING,
        "gpt has been held for 13.0 h (limit 12 h): maintenance",
    )


# --- names


def test_a_name_that_is_longer_and_a_job_of_somebody_else_do_not_count() -> None:
    names = ("gpt-eval", "gpt-evaluation", "my-gpt-eval")
    rows = [job(id=str(number), name=name, user="me") for number, name in enumerate(names)]
    rows.append(job(id="3", name="gpt-eval", user="somebody"))
    assert [related_job.id for related_job in find_related_jobs(("gpt-eval",), tuple(rows), "me", set())] == ["0"]
    assert find_related_jobs(("gpt-eval",), tuple(rows), "me", {"0"}) == ()


# --- isolation


class Leaping(SystemClock):
    """Shows one time after the other, and then the last one for ever."""

    def __init__(self, *times: float) -> None:
        self.times = [*times]

    def monotonic(self) -> float:
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


def test_one_that_fails_stops_no_other() -> None:
    def broken() -> int:
        raise OpsctlError("no such quota")

    def bug() -> int:
        return int(str(None)[9])

    answers: dict[str, int | Failed] = Isolation(SystemClock(), 100).run({"a": broken, "b": bug, "c": lambda: 3})
    assert (answers["a"], answers["c"]) == (Failed(why="no such quota"), 3)
    failed = answers["b"]
    assert isinstance(failed, Failed) and failed.why == "a bug in opsctl: IndexError: string index out of range"
    assert any("in bug" in line for line in failed.traceback)


def test_one_that_hangs_is_left_behind_and_not_begun_again_until_it_is_back() -> None:
    gate, begun = threading.Event(), []

    def hangs() -> int:
        begun.append(1)
        gate.wait(300)
        return 1

    one = Isolation[str, int](Leaping(0, -1000, 9), 9)  # "b" is waited for as long as it takes; then time is up
    late = Failed(why="no answer within 9 s")
    assert one.run({"b": lambda: 2, "a": hangs}) == {"a": late, "b": 2}
    assert one.run({"a": hangs}) == {"a": late}
    assert begun == [1]
    gate.set()
    while any(thread.name == "a" for thread in threading.enumerate()):
        time.sleep(0.01)
    one.clock = SystemClock()
    assert one.run({"a": hangs}) == {"a": 1}


# --- the registry


@pytest.mark.parametrize("name", WATCHDOGS)
def test_each_watchdog_has_its_file_its_test_and_its_place_in_the_documentation(name: str) -> None:
    assert WATCHDOGS[name].name == name
    assert (ROOT / f"watchdogs/{name}.py").is_file()
    assert name in str(watch.help).split("NAMEs")[1], "and in its verb's help"
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert f'"{name}"' in tests.replace(f'"{name}": ', "")
    assert f"## {name}" in (ROOT / "docs/reference/watchdogs.md").read_text()
