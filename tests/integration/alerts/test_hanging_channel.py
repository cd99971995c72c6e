"""A channel that never answers delays no other channel, and not the caller."""

import socket

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.senders import Senders


@pytest.fixture
def silent_url():
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def test_hanging_channel_delays_neither_pager_nor_caller(site, silent_url, tmp_path):
    pager = tmp_path / "pager.txt"
    world = site(
        {"slack": {"kind": "slack", "webhook": silent_url}, "pager": {"kind": "file", "path": str(pager)}},
    )
    senders = Senders(world.clock)
    world.record("C")
    deliveries = dispatch.send_alerts(world.alerting, senders, wait_s=5)
    assert [delivery.item.channel for delivery in deliveries] == ["pager"]
    assert "CRITICAL" in pager.read_text()
    assert list(senders.wait(0.01)) == ["slack"], "the caller did not wait for it"
    assert [item.channel for item in dispatch.list_undelivered(world.alerting)] == ["slack"]
