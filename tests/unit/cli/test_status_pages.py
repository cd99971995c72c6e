"""The pages of `opsctl status`: one line a train, and a card that fits a small terminal."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console, Group, RenderableType

from opsctl.alerts.ledger_files import OpenAlert
from opsctl.base.findings import Severity
from opsctl.cli.status_card import BLOCKS, fitted_card, sparkline, status_block
from opsctl.cli.status_table import alert_texts, draw_table
from opsctl.monitor.status import LastAttempt, Running, TrainStatus, Waiting, unreadable
from opsctl.state.requests import Request, RequestKind
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.run_progress import Progress

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
PROGRESS = Progress(
    step=44350,
    last_step=115311,
    loss=2.31,
    losses=tuple(2.5 - n / 1000 for n in range(200)),
    losses_from=44150,
    tokens=None,
    step_s=12.3,
    usual_step_s=12.3,
    tflops=150.0,
    usual_tflops=149.0,
    phase="train",
    at=NOW,
    note="",
    checkpoint_step=44300,
    checkpoint_at=NOW - timedelta(minutes=10),
    next_save=44400,
    next_save_s=600.0,
    left=None,
)
LONG = "a reason of many words that a person has typed in full because the night was long " * 4


def make_status(name: str = "tr11", **changes: object) -> TrainStatus:
    running = Running(
        job="12_3",
        state="running",
        nodes="node[001-048]",
        since=NOW - timedelta(hours=2),
        ends=NOW + timedelta(hours=18),
    )
    plain = replace(
        unreadable(RunDir(Path("/trains") / name), ""),
        state="running",
        running=(running,),
        waiting=(),
        progress=PROGRESS,
        notes=(),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # fields of TrainStatus


def make_alert(severity: Severity = Severity.CRITICAL, train: str = "tr11", **changes: object) -> OpenAlert:
    alert = OpenAlert(key=f"hang/{train}", severity=severity, summary="no step for 2 h", train=train, since="")
    return replace(alert, **changes)  # type: ignore[arg-type]  # fields of OpenAlert


def draw(page: RenderableType, terminal: Console) -> list[str]:
    with terminal.capture() as caught:
        terminal.print(page)
    return [line.rstrip() for line in caught.get().splitlines()]


def draw_card(status: TrainStatus, width: int = 80, room: int = 15) -> list[str]:
    terminal = Console(width=width, height=room)
    return draw(fitted_card(status, NOW, terminal, room, ramp=BLOCKS), terminal)


CROWDED = make_status(
    alerts=(make_alert(), make_alert(Severity.WARNING, acknowledged=True, summary=LONG)),
    stop="requested 4 min ago (the loss has diverged), no reaction so far, SIGTERM in 60 s",
    waiting=tuple(Waiting(array=str(n), tasks=9, reason="Priority", why=LONG, start=None) for n in range(9)),
    last_attempt=LastAttempt(attempt="12_2.0", outcome="crashed", action="continue", why=LONG, at=NOW),
    links=("https://example.org/run",),
)


def test_alert_names_its_train_once() -> None:
    named = make_alert(summary="tr11: no step", names_train=True)
    other = make_alert(summary="tr11x is down")
    assert [text.plain for text in alert_texts([named, other])] == [
        "CRITICAL  tr11: no step",
        "CRITICAL  tr11: tr11x is down",
    ]


def test_card_fits_a_small_terminal() -> None:
    lines = draw_card(CROWDED)
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 80
    assert "more lines: opsctl status tr11" in lines[-1]


def test_small_card_keeps_alert_stop_and_run() -> None:
    lines = draw_card(CROWDED, room=6)
    assert len(lines) <= 6
    assert "no step for 2 h" in lines[1]
    assert "requested 4 min ago" in lines[2]
    assert any("18h until its limit" in line for line in lines)


def test_card_with_long_alerts_still_fits() -> None:
    alerts = tuple(make_alert(summary=LONG) for _ in range(30))
    lines = draw_card(replace(CROWDED, alerts=alerts))
    assert len(lines) <= 15
    assert lines[-1].split()[1].isdigit()


def test_ordinary_card_is_shown_whole() -> None:
    status = make_status(alerts=(make_alert(),), last_attempt=CROWDED.last_attempt)
    terminal = Console(width=200, height=40)
    whole = draw(status_block(status, NOW), terminal)
    assert draw_card(status, width=200, room=39) == whole
    assert whole[1].split()[0] == "critical"


def test_task_beyond_its_limit_shows_the_excess() -> None:
    late = replace(CROWDED.running[0], ends=NOW - timedelta(minutes=12))  # type: ignore[index]  # not None
    assert "2h, 12m over its limit" in draw_card(make_status(running=(late,)))[1]
    assert "12m over its limit" in draw_table_lines(make_status(running=(late,)))[1]


def test_request_shows_its_age() -> None:
    request = Request(
        verb=RequestKind.RELEASE, by="ada", since=NOW - timedelta(minutes=4), exclude="", path=Path("release-1.json")
    )
    text = " ".join(draw_card(make_status(requests=(request,))))
    assert "release requested by ada 4m ago" in text


def draw_table_lines(*statuses: TrainStatus, width: int = 80, room: int | None = None) -> list[str]:
    terminal = Console(width=width)
    return draw(draw_table(statuses, NOW, terminal, room), terminal)


def test_several_trains_have_one_line_each() -> None:
    held = make_status("held", state="held", running=(), progress=None, last_attempt=CROWDED.last_attempt)
    head, *lines = draw_table_lines(make_status(), held, make_status("third", progress=None))
    assert head.split() == ["train", "state", "done", "step", "loss", "now"]
    assert [line.split()[:2] for line in lines] == [["tr11", "running"], ["held", "held"], ["third", "running"]]
    assert "38.5 %" in lines[0]
    assert "crashed" in lines[1]
    assert max(map(len, lines)) <= 80


def test_name_of_a_train_is_never_cut() -> None:
    name = "a-train-with-a-name-of-forty-characters-"
    assert name in draw_table_lines(make_status(name), make_status("b"))[1]


def test_small_table_keeps_trains_in_need() -> None:
    many = [make_status(f"tr{n:02d}") for n in range(50)]
    many[30] = make_status("tr30", state="held")
    many[44] = make_status("tr44", alerts=(make_alert(train="tr44"),))
    lines = draw_table_lines(*many, room=8)
    assert len(lines) == 8
    assert {"tr30", "tr44"} <= {line.split()[0] for line in lines}
    assert lines[-1] == "and 44 more: 44 running"


def test_loud_alerts_stand_above_the_table() -> None:
    quiet = make_alert(acknowledged=True), make_alert(silenced_until="2026-11-21")
    texts = [text.plain for text in alert_texts([make_alert(), *quiet, make_alert(Severity.WARNING, train="")])]
    assert texts == ["CRITICAL  tr11: no step for 2 h", "WARNING  no step for 2 h"]


def test_few_alerts_are_wrapped_so_that_the_fact_is_seen() -> None:
    alert = make_alert(summary=f"{'7301_4.0 hangs: training, no sign of life for 22m; ' * 3}rank 137 does not answer")
    few, many = (alert_texts([alert] * count, room=4) for count in (2, 3))
    assert "does not answer" in " ".join(draw(Group(few[0]), Console(width=80)))
    assert len(draw(Group(many[0]), Console(width=80))) == 1


def test_long_reason_is_cut_in_the_table_also_where_there_is_room() -> None:
    status = make_status("held", state="held", running=(), last_attempt=CROWDED.last_attempt)
    assert max(map(len, draw_table_lines(status, make_status(), width=1000))) < 220


def test_many_alerts_are_counted() -> None:
    texts = alert_texts([make_alert() for _ in range(20)], room=5)
    assert [text.plain for text in texts[4:]] == ["and 16 more alerts: opsctl alerts list"]


def test_late_fall_of_the_loss_shows() -> None:
    losses = [11 - n / 12 for n in range(100)] + [2.7 - n / 1000 for n in range(140)]
    curve = sparkline(losses, 32)
    assert curve.startswith("↑" * 13), "what lies beyond the scale has no sign of the scale"
    assert curve.endswith("▁")
    assert len(set(curve[16:])) >= 6


@pytest.mark.parametrize("losses", [[float("nan")] * 20, [1e308, -1e308, *[1e-308] * 20], [5.0] * 10 + [2.0] * 10])
def test_odd_losses_have_a_curve(losses: list[float]) -> None:
    assert len(sparkline(losses, 20)) == 20


def test_task_that_slurm_ends_has_no_limit() -> None:
    status = make_status()
    assert status.running is not None
    ending = replace(status.running[0], state="COMPLETING", ends=NOW - timedelta(seconds=8))
    text = "\n".join(draw_card(replace(status, running=(ending,))))
    assert "ended, Slurm cleans up" in text
    assert "over its limit" not in text
