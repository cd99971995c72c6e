"""Reports of logs without a run directory, with lines as in the chronicles. `pytest tests/unit/report`"""

import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.base.errors import InputError
from opsctl.report.contents import Reliability, Report, ReportPeriod
from opsctl.report.formats import facts, render_headline
from opsctl.report.log_report import report_log
from opsctl.slurm.past_jobs import parse_past_jobs, read_past_jobs
from opsctl.telemetry.progress.effective_time import Bucket
from tests.support.cases import read_cases

CORPUS = Path(__file__).parents[2] / "corpus"
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def read_spent(report: Report) -> dict[str, float]:
    return {bucket.value: round(seconds, 2) for bucket, seconds in report.buckets.items() if seconds > 1e-6}


def parse_local(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_end_of_a_13b_task_is_a_step_and_a_save() -> None:
    """A single line does not say how many steps it covers; the last step is certain."""
    report = report_log(CORPUS / "logs" / "tasks" / "tr1-13b-end.txt", None, NOW)
    assert read_spent(report) == {"training": 23.49, "checkpoints": 57.51}
    assert report.end.timestamp() == pytest.approx(parse_local("2021-08-08 01:00:51"), abs=2)
    assert (report.attempts[0].outcome, report.step, report.samples) == ("left", 33240, 15019344)


def test_spike_of_the_13b_training_is_in_the_curve() -> None:
    report = report_log(CORPUS / "logs" / "tr1-13b.txt", None, NOW)
    assert max(point.high for point in report.loss) == 8.715872
    assert (report.step, report.last_step, report.is_timed) == (43680, 311541, False)
    assert report.step_s == pytest.approx(22.1817)


def test_missing_lines_take_the_usual_time() -> None:
    """The last line of the excerpt covers ten known steps; 14,600 steps lie between the two last lines."""
    report = report_log(CORPUS / "logs" / "tr1-13b.txt", None, NOW)
    assert report.buckets[Bucket.SLOW] == 0
    assert report.buckets[Bucket.EFFECTIVE] == pytest.approx((43680 - 29010) * 22.18, rel=0.001)
    assert report.notes[-1] == "14,600 steps are missing in the log; the report assumes the usual time for them"


def test_log_without_times_has_no_ettr() -> None:
    report = report_log(CORPUS / "logs" / "tr1-13b.txt", None, NOW)
    assert (report.ettr, report.ettr_without_queue) == (None, None)
    assert render_headline(report) == (
        "100.0% of 3d 18h of steps and saves was new steps; the wall-clock time is unknown"
    )


@pytest.mark.parametrize(*read_cases(__file__, "epochs_count_where_the_log_shows_no_steps"))
def test_epochs_count_where_the_log_shows_no_steps(tmp_path: Path, line: str, last: int, expected: str) -> None:
    log = tmp_path / "main_log.txt"
    text = (line.format(at=f"2026-01-01 10:{number:02d}:00", number=number) for number in range(1, last + 1))
    log.write_text("\n".join(text) + "\n")
    report = report_log(log, None, NOW)
    assert (report.unit, dict(facts(report))["epoch"]) == ("epoch", expected)
    assert report.ettr == pytest.approx(1, abs=0.03)


LINE = (
    " iteration {:8d}/   1000 | elapsed time per iteration (s): 10.0 | global batch size:   16 | lm loss: 2.0E+00 |\n"
)


def steps(first: int, last: int) -> str:
    return "".join(map(LINE.format, range(first, last + 1)))


def test_step_going_back_starts_another_attempt(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(steps(1, 30) + "Traceback\n" + steps(21, 40))
    report = report_log(log, None, NOW)
    assert read_spent(report) == {"training": 400, "done twice": 100}
    assert [attempt.outcome for attempt in report.attempts] == ["broke off", ""]
    assert report.notes == (
        "the log has no times: only the time of steps and saves is known; --sacct FILE adds the rest",
    )


def test_megatron_times_show_the_time_between_attempts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "[before the start of training step] datetime: 2021-08-08 00:00:00\n"
        + steps(1, 30)
        + "saving checkpoint at iteration      30 to /c\n"
        + "time (ms) | save-checkpoint: 20000.0\n"
        + "[exiting program after 5.3 minutes] datetime: 2021-08-08 00:05:20\n"
        + "[2021-08-08 01:05:00] ***ALERT: tr1 is not RUNNING or SCHEDULED! Alert someone at Eng WG***\n"
        + "[2021-08-08 04:55:00] PULSE: tr1 is scheduled to start in 0:10:00 (at 2021-08-08T05:05:00)\n"
        + " > loading checkpoint from /c at iteration 30\n"
        + "[before the start of training step] datetime: 2021-08-08 05:05:00\n"
        + steps(31, 60)
        + "[exiting program after 5 minutes] datetime: 2021-08-08 05:10:00\n"
    )
    report = report_log(log, None, NOW)
    assert read_spent(report) == {"training": 600, "checkpoints": 20, "unknown": 5 * 3600 + 300 - 320}
    assert [attempt.outcome for attempt in report.attempts] == ["left", "left"]


SACCT = """JobID|State|Submit|Start|End|NodeList
12_1|FAILED|2026-02-01T00:00:00|2026-02-01T01:00:00|2026-02-01T01:12:00|r1i0n[0-3]
12_1.batch|FAILED|2026-02-01T01:00:00|2026-02-01T01:00:00|2026-02-01T01:12:00|r1i0n0
12_2|COMPLETED|2026-02-01T00:00:00|2026-02-01T02:00:00|2026-02-01T02:08:20|r1i0n[0-3]
"""


def test_sacct_adds_queue_and_tails(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(steps(1, 30) + steps(21, 50))
    report = report_log(log, parse_past_jobs(SACCT, "it"), NOW)
    assert read_spent(report) == {
        "queue": 3600 + 2880,
        "training": 500,
        "done twice": 100,
        "start-up": 200 + 200,
        "hang until noticed": 220,
    }
    assert [(attempt.attempt, attempt.outcome, attempt.nodes) for attempt in report.attempts] == [
        ("12_1", "FAILED", "r1i0n[0-3]"),
        ("12_2", "COMPLETED", "r1i0n[0-3]"),
    ]
    assert report.ettr == pytest.approx(500 / 7700)
    assert report.ettr_without_queue == pytest.approx(500 / 1220)


def test_sacct_in_columns_is_the_same() -> None:
    rows = [line.split("|") for line in SACCT.splitlines()]
    rows.insert(1, ["-" * 22] * 6)
    text = "\n".join(" ".join(f"{cell:<22}" for cell in row) for row in rows)
    assert parse_past_jobs(text, "it") == parse_past_jobs(SACCT, "it")


def test_log_times_select_the_job(tmp_path: Path) -> None:
    log = tmp_path / "log"
    at = datetime.fromisoformat("2026-02-01 02:03")
    lines = [f" [{at + timedelta(seconds=10 * n)}]" + LINE.format(n) for n in range(1, 31)]
    log.write_text("".join(lines))
    report = report_log(log, parse_past_jobs(SACCT, "it"), NOW)
    assert [attempt.last_step for attempt in report.attempts] == [None, 30]
    assert report.attempts[1].buckets[Bucket.START_UP] == pytest.approx(180)
    assert report.notes == ("1 of 2 jobs have no steps in the log",)


@pytest.mark.parametrize(*read_cases(__file__, "other_text_than_sacct_is_refused_with_a_hint"))
def test_other_text_than_sacct_is_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_past_jobs(text, "it")
    assert caught.value.message == message
    assert "--format=JobID,State,Submit,Start,End,NodeList" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"hello\n", bytes(range(256)) * 400, b"iteration / | :" * 9999])
def test_log_without_iterations_is_refused(tmp_path: Path, content: bytes) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)
    with pytest.raises(InputError, match="no iteration lines"):
        report_log(log, None, NOW)


def test_jobs_that_have_not_started_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(steps(1, 3))
    jobs = parse_past_jobs("JobID|State|Start|End\n1|PENDING|Unknown|Unknown\n", "it")
    with pytest.raises(InputError, match="no job has started"):
        report_log(log, jobs, NOW)


def test_since_in_a_log_without_times_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(steps(1, 3))
    with pytest.raises(InputError, match="this log has no times"):
        report_log(log, None, NOW, period=ReportPeriod(since=NOW))


def test_binary_file_is_no_sacct(tmp_path: Path) -> None:
    path = tmp_path / "sacct"
    path.write_bytes(bytes(range(256)) * 40)
    with pytest.raises(InputError, match="has no column"):
        read_past_jobs(path)


def test_packed_log_is_read_and_truncated_gzip_refused(tmp_path: Path) -> None:
    whole = (CORPUS / "logs/tr1-13b.txt").read_bytes()
    (tmp_path / "log.gz").write_bytes(gzip.compress(whole))
    assert (
        report_log(tmp_path / "log.gz", None, NOW).buckets == report_log(CORPUS / "logs/tr1-13b.txt", None, NOW).buckets
    )
    for broken in (gzip.compress(whole)[:-100], b"iteration"):
        (tmp_path / "log.gz").write_bytes(broken)
        with pytest.raises(InputError, match="truncated, or not a gzip file"):
            report_log(tmp_path / "log.gz", None, NOW)


def test_windows_line_ends_are_read(tmp_path: Path) -> None:
    whole = (CORPUS / "logs/tr1-13b.txt").read_bytes()
    (tmp_path / "log").write_bytes(whole.replace(b"\n", b"\r\n"))
    assert report_log(tmp_path / "log", None, NOW).buckets == report_log(CORPUS / "logs/tr1-13b.txt", None, NOW).buckets


def test_short_consecutive_jobs_get_their_own_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "[2026-02-01 10:00:05] loading checkpoint from x\n"
        + steps(1, 2)
        + "[2026-02-01 10:00:35] loading checkpoint from x\n"
        + steps(3, 4)
    )
    jobs = parse_past_jobs(
        "JobID|State|Start|End\n1|COMPLETED|2026-02-01T10:00:00|2026-02-01T10:00:26\n"
        "2|COMPLETED|2026-02-01T10:00:30|2026-02-01T10:01:00\n",
        "it",
    )
    assert [
        (attempt.attempt, attempt.first_step, attempt.last_step) for attempt in report_log(log, jobs, NOW).attempts
    ] == [
        ("1", 1, 2),
        ("2", 3, 4),
    ]


def test_jobs_far_from_the_log_times_are_noted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("[2026-02-01 10:00:05] loading checkpoint from x\n" + steps(1, 2))
    head = "JobID|State|Start|End\n"
    for day, number in (("01", 0), ("02", 0), ("04", 1)):  # time zones differ by less than a day
        jobs = parse_past_jobs(f"{head}1|COMPLETED|2026-02-{day}T10:00:00|2026-02-{day}T10:10:00\n", "it")
        notes = report_log(log, jobs, NOW).notes
        assert (
            sum("1 of 1 attempts in the log are more than a day away from all jobs" in note for note in notes) == number
        ), day


def test_log_over_the_end_of_summer_time(tmp_path: Path) -> None:
    at = ("02:57", "02:58", "02:59", "02:00", "02:01", "02:02")
    log = tmp_path / "log"
    text = ""
    for step, time in enumerate(at, 1):
        text += f"[2026-10-25 {time}:00] iteration {step:8}/     10 | "
        text += "elapsed time per iteration (s): 60.0 | lm loss: 2.0 |\n"
    log.write_text(text)
    report = report_log(log, None, datetime(2026, 11, 1, tzinfo=UTC))
    assert report.wall_s == pytest.approx(360)
    assert sum(report.buckets.values()) == pytest.approx(360)


def test_restart_line_time_belongs_to_the_new_attempt(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "[2026-02-01 10:00:05] loading checkpoint from x\n"
        + steps(1, 2)
        + "[2026-02-01 11:00:05] loading checkpoint from x\n"
        + steps(3, 4)
    )
    attempts = report_log(log, None, NOW).attempts
    assert [f"{attempt.began.astimezone():%H:%M:%S}" for attempt in attempts] == ["10:00:05", "11:00:05"]
    assert attempts[0].ended < attempts[1].began


def test_repeated_line_counts_once(tmp_path: Path) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    once.write_text(steps(1, 9))
    twice.write_text("".join(2 * steps(step, step) for step in range(1, 10)))
    assert report_log(twice, None, NOW).buckets == report_log(once, None, NOW).buckets


def test_stamp_long_before_a_step_shows_the_gap(tmp_path: Path) -> None:
    log = tmp_path / "log"
    noise = "nothing of interest\n" * 20
    log.write_text(
        f"[2026-02-01 10:00:00] begin\n{noise}{steps(1, 6)}[2026-02-01 10:11:00] much later\n{noise}{steps(7, 9)}"
    )
    assert read_spent(report_log(log, None, NOW)) == {"training": 90, "unknown": 600}


def test_log_without_jobs_has_medium_confidence() -> None:
    report = report_log(CORPUS / "logs" / "tr1-13b.txt", None, NOW)
    assert report.confidence in {Reliability.MEDIUM, Reliability.LOW}
    assert f"{report.confidence.value}: " in dict(facts(report))["confidence"]
