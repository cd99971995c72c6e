"""The headline of a train: tone, word and sentence for each state."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from opsctl.alerts.ledger_files import OpenAlert
from opsctl.base.findings import Severity
from opsctl.dash.show_times import format_age
from opsctl.dash.train_figures import draw_sparkline
from opsctl.dash.train_headline import Headline, Outlook, Tone, write_headline
from opsctl.launch.wait_reasons import WaitKind
from opsctl.monitor.status import LastAttempt, TrainStatus, Waiting, unreadable
from opsctl.state.events import AttemptFinalized, AttemptStarted, Event
from opsctl.state.journal import TrainHistory, replay
from opsctl.state.reasons import Reason
from opsctl.state.run_dir import RunDir
from tests.support.cases import read_cases
from tests.support.made_events import make_diagnosed

AT = datetime(2026, 11, 22, 3, tzinfo=UTC)
WAITING = Waiting(array="7", tasks=3, reason="Resources", why="waiting for free nodes", start=None)
NOTHING = replace(unreadable(RunDir(Path("tr11")), ""), notes=())


def status(state: str, **fields: Any) -> TrainStatus:
    return replace(NOTHING, state=state, **fields)


def last(outcome: str, action: str = "continue") -> LastAttempt:
    return LastAttempt(attempt="7_2.0", outcome=outcome, action=action, why="exit code 1", at=AT)


def alert(severity: str, **fields: Any) -> OpenAlert:
    given = {"key": "hang/tr11", "summary": "tr11: no step for 31 min", "train": "tr11", "since": AT.isoformat()}
    fields = {**given, "severity": Severity(severity), **fields}
    return OpenAlert(**{"brief": fields["summary"].removeprefix("tr11: "), **fields})


def event(number: int, event: Event) -> Event:
    return replace(event, number=number, at=AT.isoformat(), actor="ana@login1:1")


def crashes(*nodes: str, reason: Reason | None = None) -> TrainHistory:
    """Return a history of attempts in which a GPU fell off these nodes."""
    events = []
    for number, node in enumerate(nodes, 1):
        attempt = f"7_{number}.0"
        diagnosed = make_diagnosed(attempt=attempt, cause="gpu-off-the-bus", says="GPU fell off", node=node, rank=0)
        ended = AttemptFinalized(attempt=attempt, outcome="crashed", action="x", why="y", reason=reason)
        events += [
            event(3 * number, AttemptStarted(attempt=attempt, nodes=node)),
            event(3 * number + 1, diagnosed),
            event(3 * number + 2, ended),
        ]
    return replay(events)


def headline(train: TrainStatus, history: TrainHistory | None = None) -> Headline:
    return write_headline(train, history or TrainHistory(), Outlook(now=AT))


@pytest.mark.parametrize(*read_cases(__file__, "tone_follows_state_and_alerts"))
def test_tone_follows_state_and_alerts(state: str, tone: str, last_end: list[str], open_alert: dict[str, Any]) -> None:
    train = status(state, alerts=(alert(**open_alert),) if open_alert else ())
    assert headline(replace(train, last_attempt=last(*last_end) if last_end else None)).tone == tone


def test_train_that_will_never_start_needs_a_decision() -> None:
    waiting = (replace(WAITING, kind=WaitKind.NEVER),)
    assert headline(status("queued", waiting=waiting)).tone is Tone.AMBER


def test_alert_is_the_headline_of_a_running_train() -> None:
    assert headline(status("running", alerts=(alert("critical"),))).text == "No step for 31 min"


@pytest.mark.parametrize(*read_cases(__file__, "held_train_names_cause_and_nodes"))
def test_held_train_names_cause_and_nodes(nodes: list[str], text: str) -> None:
    attempt = replace(last("crashed", "hold-queued"), attempt=f"7_{len(nodes)}.0")
    assert headline(status("held", last_attempt=attempt), crashes(*nodes)).text == text


def test_queued_train_names_the_reason() -> None:
    assert headline(status("queued", waiting=(WAITING,))).text == "Waiting for free nodes"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (40, "40 s"), (720, "12 min"), (18_000, "5 h"), (3 * 86_400, "3 d")]
)
def test_age_has_one_unit(seconds: float, text: str) -> None:
    assert format_age(timedelta(seconds=seconds)) == text


def test_sparkline_marks_what_is_not_finite() -> None:
    sparkline = draw_sparkline([1.0, 2.0, float("nan"), 3.0, 4.0])
    assert sparkline
    assert sparkline.path.count("M") == 2
    assert sparkline.gaps == (100.0,)
    assert draw_sparkline([1.0, float("inf")]) is None
