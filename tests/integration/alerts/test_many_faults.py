"""Many watch cycles while channels fail in every way: no alert is lost, and only interrupted deliveries come twice."""

import random
from collections import Counter
from typing import ClassVar

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.channels import CHANNELS
from opsctl.alerts.outbox import Undelivered
from opsctl.base.findings import Severity
from tests.unit.alerts.conftest import finding

TRAINS, CYCLES = 6, 80


class Weather:
    """A channel that fails at random, before or after it has accepted a message."""

    chance = random.Random()
    taken: ClassVar[list] = []
    cut_off: ClassVar[Counter] = Counter()
    is_down = False

    def __init__(self, table, runner): ...

    def send(self, message, *, reply_to=""):
        draw = self.chance.random()
        if self.is_down or draw < 0.2:
            raise Undelivered("down", retry_after=self.chance.choice([0, 0, 300]))
        if draw < 0.25:
            raise Undelivered("refused", is_permanent=True)
        self.taken.append(message)
        if draw < 0.35:
            self.cut_off[message.id] += 1
            raise Undelivered("cut off", is_ambiguous=True)
        if draw < 0.38:
            self.cut_off[message.id] += 1
            raise RuntimeError("a bug")
        return ""


@pytest.mark.parametrize("seed", range(2))
def test_only_interrupted_deliveries_come_twice(site, monkeypatch, seed):
    monkeypatch.setitem(CHANNELS, "stdout", f"{__name__}:Weather")
    Weather.chance, Weather.taken, Weather.cut_off = random.Random(seed), [], Counter()
    world = site({"sky": {"kind": "stdout"}}, storm=1000)
    chance, transitions = random.Random(seed), []
    for _ in range(CYCLES):
        Weather.is_down = chance.random() < 0.1
        severities = chance.choices(list(Severity), [6, 1, 2, 2], k=TRAINS)
        transitions += world.ledger.record(
            [finding(severity, f"hang/{n}", train=f"t{n}") for n, severity in enumerate(severities)]
        )
        if chance.random() < 0.9:  # else the process died before it sent alerts
            dispatch.send_alerts(world.alerting)
        world.clock.forward(minutes=chance.choice([1, 10, 60]))
        world.clock.forward(seconds=chance.choice([0, 90, -90]))
    Weather.is_down = False
    for _ in range(50):
        dispatch.send_alerts(world.alerting)
        world.clock.forward(hours=3)
    taken = Counter(message.id for message in Weather.taken)
    assert set(taken) == {transition.id for transition in transitions}
    assert {ident for ident, times in taken.items() if times > 1} <= set(Weather.cut_off)
    assert all(times <= 1 + Weather.cut_off[ident] for ident, times in taken.items())
    assert dispatch.list_undelivered(world.alerting) == []
    assert len(transitions) > 50
