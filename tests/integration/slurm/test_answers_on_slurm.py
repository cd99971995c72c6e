"""Hold and release by the buttons of an alert, through `opsctl watch` to the queue of a real Slurm."""

from collections.abc import Iterator

import pytest

from opsctl.alerts import dispatch
from opsctl.base.findings import Severity
from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import Held, HoldReleased, RequestDone
from opsctl.state.journal import Journal
from opsctl.state.switches import Switch, arm
from tests.support.cases import read_table
from tests.support.findings import make_finding
from tests.support.ntfy_server import NtfyServer, press
from tests.support.trains import Trains, trains_on

CHANNEL: str = read_table(__file__, "channel")


@pytest.fixture
def ntfy() -> Iterator[NtfyServer]:
    server = NtfyServer()
    yield server
    server.close()


@pytest.fixture
def trains(slurm: Sandbox, ntfy: NtfyServer) -> Iterator[Trains]:
    with trains_on(slurm) as trains:
        with trains.site.open("a") as file:
            file.write(CHANNEL.format(url=ntfy.url))
        trains.site.chmod(0o600)
        trains.opsctl("launch", trains.toml(extra=("--begin=now+1hour",)))
        send_alert(trains, "loss/t/x")
        yield trains


def send_alert(trains: Trains, key: str) -> None:
    alerting = trains.app.alerting
    alerting.ledger.record([make_finding(key=key, severity=Severity.CRITICAL, summary="loss diverges", train="t")])
    dispatch.send_alerts(alerting)


def test_answer_holds_and_releases_the_queue(trains: Trains, ntfy: NtfyServer) -> None:
    hold, release = ntfy.topics["alerts"][0]["actions"]
    press(hold)
    trains.opsctl("watch", "failures", "--once")
    assert all(job.is_held for job in trains.rows())
    assert any("anna: t: held " in message["title"] for message in ntfy.topics["alerts"][1:])
    held = [event for event in Journal(trains.run(), trains.app.clock).events() if isinstance(event, Held)]
    assert [str(event.reason) for event in held] == ["anna by phone: answered"]

    press(release)
    trains.opsctl("watch", "failures", "--once")
    assert not any(job.is_held for job in trains.rows())
    assert {HoldReleased, RequestDone} <= set(trains.kinds())

    arm(trains.run(), Switch.PAUSE, why="maintenance")
    send_alert(trains, "loss/t/y")  # with buttons of its own: each counts once
    press(ntfy.topics["alerts"][-1]["actions"][1])
    trains.opsctl("watch", "failures", "--once")
    assert all(job.is_held for job in trains.rows()), "an armed switch is stronger than an answer"
    assert any("armed the pause switch" in message["title"] for message in ntfy.topics["alerts"])
