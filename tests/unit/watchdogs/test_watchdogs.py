"""Nodes, cron, wait reasons and the registry, without Slurm."""

import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from opsctl.base.findings import Severity
from opsctl.base.model import JobState, Node
from opsctl.cli.watch import watch
from opsctl.launch.wait_reasons import WaitKind, classify_wait
from opsctl.state.events import AttemptFinalized, AttemptStarted, Cancelled, Held, Submitting
from opsctl.state.reasons import Reason, ReasonKind, as_written
from opsctl.watchdogs import WATCHDOGS
from opsctl.watchdogs.node_health import worst_severity
from opsctl.watchdogs.slurm_status import find_related_jobs, list_pulse_lines
from tests.support.cases import read_cases
from tests.support.watch_context import T0, Bench, job, waiting

ROOT = Path(__file__).parents[3]


# --- nodes


@pytest.mark.parametrize(*read_cases(__file__, "node_states_have_severities", severity=Severity))
def test_node_states_have_severities(state: str, severity: Severity) -> None:
    assert worst_severity(state) is severity


def test_only_nodes_of_the_train_are_judged(bench: Bench) -> None:
    bench.start_task(nodes="n[1-2]")
    bench.nodes = tuple(Node(name=f"n{n}", state="DOWN" if n > 1 else "MIXED", address="a") for n in (1, 2, 3))
    assert [finding.key for finding in bench.judge_all("node_health")] == ["node_health/gpt", "node_health/gpt/n2"]


def test_unlisted_node_is_unknown(bench: Bench) -> None:
    bench.start_task(nodes="n[1-2]")
    bench.nodes = (Node(name="n1", state="MIXED", address="a"),)
    assert bench.judge("node_health").severity is Severity.UNKNOWN


@pytest.mark.parametrize(("health", "severity"), [("faulty", Severity.CRITICAL), ("degraded", Severity.WARNING)])
def test_health_finding_of_a_node_holds_for_a_day(bench: Bench, health: str, severity: Severity) -> None:
    bench.start_task(nodes="n[1-3]")
    bench.nodes = tuple(Node(name=f"n{n}", state="MIXED", address="a") for n in (1, 2, 3))
    records = bench.root / ".site" / "nodes" / "node"
    records.mkdir(parents=True)
    for node, hours, state in (("n1", 1, health), ("n2", 1, "healthy"), ("n3", 25, "faulty")):
        at = (T0 - timedelta(hours=hours)).timestamp()
        (records / f"{node}.json").write_text(
            json.dumps({"node": node, "at": at, "health": state, "evidence": ["ECC"]})
        )
    _, finding = bench.judge_all("node_health")
    assert (finding.key, finding.severity, finding.evidence) == ("node_health/gpt/n1", severity, ("ECC",))
    assert finding.summary == f"n1 under gpt is {health}: ECC"


def test_missing_node_list_is_unknown(bench: Bench) -> None:
    bench.nodes = None
    assert bench.judge("node_health").severity is Severity.UNKNOWN


# --- cron


def test_cron_that_was_never_started_is_ok(bench: Bench) -> None:
    assert bench.judge("cron_alive").summary == "cron: not started"


def test_missing_tick_is_reported(bench: Bench) -> None:
    driver = bench.root / ".site/cron/driver"
    driver.mkdir(parents=True)
    (driver / "wanted.json").write_text("{}")
    assert bench.judge("cron_alive").severity is Severity.WARNING
    (driver.parent / "last-tick").write_text(f"{T0.timestamp():.0f}\n")
    assert bench.judge("cron_alive", after=timedelta(minutes=29)).severity is Severity.OK
    finding = bench.judge("cron_alive", after=timedelta(minutes=2))
    assert finding.severity is Severity.CRITICAL
    assert finding.summary.endswith(": no tick for 31 min (limit 30 min)")
    (driver / "wanted.json").unlink()
    assert bench.judge("cron_alive").severity is Severity.OK


def test_tick_of_a_clock_ahead_counts(bench: Bench) -> None:
    cron_dir = bench.root / ".site/cron"
    (cron_dir / "driver").mkdir(parents=True)
    (cron_dir / "driver/wanted.json").write_text("{}")
    (cron_dir / "last-tick").write_text(f"{T0.timestamp() + 90:.0f}\n")
    assert bench.judge("cron_alive").severity is Severity.OK


def select_cron(bench: Bench, tick: datetime, entries: dict[str, dict[str, object]] | None = None) -> None:
    """Write the files of a cron with a selected driver, its last tick and its ledger."""
    cron_dir = bench.root / ".site/cron"
    (cron_dir / "driver").mkdir(parents=True, exist_ok=True)
    (cron_dir / "driver/wanted.json").write_text("{}")
    (cron_dir / "last-tick").write_text(f"{tick.timestamp():.0f}\n")
    (cron_dir / "ledger.json").write_text(json.dumps({"entries": entries or {}, "ticks": []}))


def test_tick_from_the_future_counts_from_its_first_sight(bench: Bench) -> None:
    select_cron(bench, T0 + timedelta(hours=1))
    assert bench.judge("cron_alive").severity is Severity.OK
    assert bench.judge("cron_alive", after=timedelta(minutes=31)).severity is Severity.CRITICAL
    assert bench.judge("cron_alive", after=timedelta(minutes=30)).severity is Severity.CRITICAL


def test_watch_entry_that_does_not_run_is_critical(bench: Bench) -> None:
    since = {"since": T0.isoformat(), "result": "ok"}
    now = T0 + timedelta(minutes=45)
    select_cron(bench, now, {"opsctl watch --once": since})
    finding = bench.judge("cron_alive", after=now - T0)
    assert (finding.severity, finding.remedy) == (Severity.CRITICAL, "opsctl cron status")
    assert finding.summary == "cron: ticks come, but `opsctl watch --once` has not run since 2026-01-05 01:00 UTC"


@pytest.mark.parametrize("result", ["failed", "timeout", "refused"])
def test_watch_entry_that_fails_is_a_warning(bench: Bench, result: str) -> None:
    ran = {"since": T0.isoformat(), "result": result, "detail": "exit 3"}
    select_cron(bench, T0, {"opsctl watch --once": ran})
    finding = bench.judge("cron_alive")
    assert finding.severity is Severity.WARNING
    assert finding.summary == f"cron: the last run of `opsctl watch --once`: {result}: exit 3"


def test_watch_entry_on_time_is_ok(bench: Bench) -> None:
    select_cron(bench, T0, {"opsctl watch --once": {"since": T0.isoformat(), "result": "running"}})
    assert bench.judge("cron_alive").severity is Severity.OK
    select_cron(bench, T0 + timedelta(minutes=15), {"opsctl watch --once": {"since": T0.isoformat(), "result": "ok"}})
    assert bench.judge("cron_alive", after=timedelta(minutes=15)).severity is Severity.OK


# --- waiting


@pytest.mark.parametrize(*read_cases(__file__, "wait_reasons_are_classified", kind=WaitKind))
def test_wait_reasons_are_classified(reason: str, kind: WaitKind) -> None:
    assert classify_wait(waiting(reason)) is kind


def test_lasting_unknown_reason_is_unknown(bench: Bench) -> None:
    bench.jobs = (waiting("SomethingNew"),)
    assert bench.judge("slurm_status").severity is Severity.OK
    assert bench.judge("slurm_status", after=timedelta(minutes=31)).severity is Severity.UNKNOWN


def test_lasting_account_limit_without_start_is_a_warning(bench: Bench) -> None:
    bench.jobs = (waiting("AssocGrpNodeLimit"),)
    bench.judge("slurm_status")
    assert bench.judge("slurm_status", after=timedelta(minutes=31)).severity is Severity.WARNING
    bench.jobs = (waiting("AssocGrpNodeLimit", start=T0 + timedelta(days=1)),)
    assert bench.judge("slurm_status").severity is Severity.OK


def test_failed_launch_is_critical_at_once(bench: Bench) -> None:
    bench.jobs = (waiting("launch failed requeued held"),)
    finding = bench.judge("slurm_status")
    assert finding.severity is Severity.CRITICAL
    assert finding.summary == "gpt: array 7 could not be started: launch failed requeued held"


def test_next_array_that_never_starts_is_a_warning(bench: Bench) -> None:
    bench.jobs = (job(start=T0), waiting("DependencyNeverSatisfied"))
    assert bench.judge("slurm_status").severity is Severity.WARNING


def test_unknown_state_is_unknown(bench: Bench) -> None:
    bench.jobs = (job(state=JobState.UNKNOWN),)
    assert bench.judge("slurm_status").severity is Severity.UNKNOWN


def test_slow_cleanup_is_a_warning(bench: Bench) -> None:
    bench.jobs = (job(state=JobState.COMPLETING, end=T0),)
    assert bench.judge("slurm_status", after=timedelta(minutes=29)).severity is Severity.OK
    assert bench.judge("slurm_status", after=timedelta(minutes=2)).severity is Severity.WARNING


def test_interrupted_submission_is_unknown_for_ten_minutes(bench: Bench) -> None:
    bench.journal.append(Submitting(nonce="m", tasks=3, after=""))
    assert bench.judge("slurm_status", after=timedelta(minutes=9)).severity is Severity.UNKNOWN
    assert bench.judge("slurm_status", after=timedelta(minutes=2)).severity is Severity.CRITICAL


def test_finished_train_is_ok(bench: Bench) -> None:
    bench.journal.append(AttemptStarted(attempt="7_1.0", nodes="n1"))
    bench.journal.append(
        AttemptFinalized(
            attempt="7_1.0",
            outcome="finished",
            action="cancel-queued",
            why="the last step is done",
        )
    )
    assert bench.judge("slurm_status").summary == "gpt: finished: the last step is done"
    bench.journal.append(
        Cancelled(
            jobs=("7",),
            reason=Reason(
                kind=ReasonKind.NOT_NEEDED, attempt="7_1.0", outcome="finished", text="the last step is done"
            ),
        )
    )
    assert bench.judge("slurm_status").summary == "gpt: 7_1.0 finished: the last step is done"
    bench.journal.append(Cancelled(jobs=("8",), reason=as_written("opsctl cancel")))
    assert bench.judge("slurm_status").summary.endswith(": opsctl cancel")


def test_array_of_another_train_is_ignored(bench: Bench) -> None:
    bench.jobs = (job(comment="opsctl:gpt:another", name="gpt"),)
    assert bench.judge("slurm_status").severity is Severity.CRITICAL


# --- pulse


def test_pulse_lines_match_the_chronicles() -> None:
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
    lines = [line.partition("PULSE: ")[2] for line in list_pulse_lines("tr1", (later, runs, held), T0)]
    start = later.start.astimezone() if later.start else when
    assert lines == [
        f"tr1-13B-round3 is scheduled to start in 3d 7h (at {start:%Y-%m-%dT%H:%M:%S})"
        " (682842_[1-5%1] on 'gpu_p13' partition)",
        f"tr1 is running for 2-15:00:00 since {when - timedelta(days=2, hours=15):%Y-%m-%dT%H:%M:%S}"
        " (7_1 on 'gpu' partition (node-[1-63])",
        "gpt is waiting for the previous job to finish before scheduling a new one using the dependency mechanism"
        " (7_[2-3%1] on 'gpu' partition)",
    ]
    assert list_pulse_lines("tr1", (), T0)[0].startswith(
        f"[{when:%Y-%m-%d %H:%M:%S}] PULSE: ***ALERT: tr1 is not RUNNING"
    )


def test_pulse_is_written_on_change_and_every_ten_minutes(bench: Bench) -> None:
    bench.start_task()
    for _ in range(601):
        bench.judge("slurm_status", after=timedelta(seconds=2))
    bench.jobs = ()
    bench.judge("slurm_status")
    assert len((bench.run.logs / "pulse.log").read_text().splitlines()) == 4
    assert not bench.run.main_log.exists()


def test_pulse_goes_on_after_a_clock_ahead(bench: Bench) -> None:
    bench.start_task()
    bench.judge("slurm_status", after=timedelta(days=1))
    bench.clock.time = T0
    bench.judge("slurm_status", after=timedelta(minutes=11))
    assert len((bench.run.logs / "pulse.log").read_text().splitlines()) == 2


def test_wait_from_the_future_counts_from_now(bench: Bench) -> None:
    bench.site = {"watch": {"exclusive_allocation_minutes": 60}}
    bench.jobs = (waiting("Resources"),)
    bench.judge("slurm_status", after=timedelta(days=1))
    bench.clock.time = T0
    bench.judge("slurm_status")
    assert bench.judge("slurm_status", after=timedelta(minutes=61)).severity is Severity.CRITICAL


# --- holds


def test_age_of_a_hold_comes_from_the_journal(bench: Bench) -> None:
    bench.journal.append(Held(jobs=("7",), reason=as_written("maintenance")))
    bench.jobs = (waiting("JobHeldUser"),)
    finding = bench.judge("held", after=timedelta(hours=13))
    assert finding.severity is Severity.WARNING
    assert finding.summary == "gpt has been held for 13.0 h (limit 12 h): maintenance"


def test_hold_from_the_future_counts_from_now(bench: Bench) -> None:
    bench.jobs = (waiting("JobHeldUser"),)
    bench.judge("held", after=timedelta(days=1))
    bench.clock.time = T0
    bench.judge("held")
    assert bench.judge("held", after=timedelta(hours=13)).severity is Severity.WARNING


# --- names


def test_related_jobs_match_name_and_user() -> None:
    names = ("gpt-eval", "gpt-evaluation", "my-gpt-eval")
    rows = [job(id=str(number), name=name, user="me") for number, name in enumerate(names)]
    rows.append(job(id="3", name="gpt-eval", user="somebody"))
    assert [related_job.id for related_job in find_related_jobs(("gpt-eval",), tuple(rows), "me", set())] == ["0"]
    assert find_related_jobs(("gpt-eval",), tuple(rows), "me", {"0"}) == ()


# --- the registry


@pytest.mark.parametrize("name", WATCHDOGS)
def test_watchdog_has_file_test_and_documentation(name: str) -> None:
    assert WATCHDOGS[name].name == name
    module = "own_checks" if name.endswith("_checks") else name
    assert (ROOT / f"watchdogs/{module}.py").is_file()
    assert name in str(watch.help).split("NAMEs")[1], "the help of opsctl watch names the watchdog"
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert f'"{name}"' in tests.replace(f'"{name}": ', "")
    headings = re.findall("(?m)^## (.*)$", (ROOT / "docs/reference/watchdogs.md").read_text())
    assert name in " ".join(headings).split()


def test_long_wait_behind_other_jobs_is_a_warning(bench: Bench) -> None:
    bench.jobs = (waiting("Priority"),)
    assert bench.judge("slurm_status").severity is Severity.OK
    assert bench.judge("slurm_status", after=timedelta(hours=23)).severity is Severity.OK
    finding = bench.judge("slurm_status", after=timedelta(hours=2))
    assert finding.severity is Severity.WARNING
    assert "gpt has waited for 1d 1h (limit 1d)" in finding.summary


def test_wait_is_compared_with_the_trains_own_waits(bench: Bench) -> None:
    bench.jobs = (waiting("Resources"),)
    bench.judge("slurm_status")
    bench.start_task()
    bench.judge("slurm_status", after=timedelta(hours=20))
    bench.jobs = (waiting("Resources"),)
    bench.judge("slurm_status")
    assert bench.judge("slurm_status", after=timedelta(hours=59)).severity is Severity.OK
    assert bench.judge("slurm_status", after=timedelta(hours=2)).severity is Severity.WARNING


def test_waiting_hours_override_the_history(bench: Bench) -> None:
    bench.site = {"watch": {"waiting_hours": 2.0}}
    bench.jobs = (waiting("Resources"),)
    bench.judge("slurm_status")
    assert bench.judge("slurm_status", after=timedelta(hours=3)).severity is Severity.WARNING
