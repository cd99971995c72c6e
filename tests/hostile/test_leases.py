"""Leases that a crash, a wrong clock or another user left."""

import json
import os
import time
from datetime import timedelta

import pytest

from opsctl.host.system import SystemClock
from opsctl.state.lease import LEASE_STALE_S, LeaseBusy, lease
from tests.support.watched_trains import ForwardClock

HOUR = 3600
LEFT = {
    "empty": "",
    "torn": '{"host": "node0',
    "zeros": "\0" * 400,
    "wrong types": json.dumps({"host": [], "pid": "x", "started": None, "at": "now"}),
    "a list": "[]",
    "deep JSON": "[" * 4000,
    "no time": json.dumps({"host": "h", "pid": 1, "started": 1, "at": float("nan")}),
    "a negative process": json.dumps({"host": "h", "pid": -1, "started": 1, "at": 1.0}),
}


@pytest.mark.attack("a broken lease blocks for ever")
@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
@pytest.mark.parametrize("age", [HOUR, -HOUR], ids=["old", "from the future"])
def test_broken_lease_is_recovered(tmp_path, text, age):
    (tmp_path / ".lease").write_text(text)
    os.utime(tmp_path / ".lease", (time.time() - age,) * 2)
    with lease(tmp_path, SystemClock(), wait=0):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.attack("a lease that is dated in the future blocks for ever")
@pytest.mark.parametrize("age", [HOUR, -HOUR], ids=["old file", "file from the future"])
def test_lease_from_the_future_is_recovered(tmp_path, age):
    later = {"host": "another", "pid": 1, "started": 1, "at": time.time() + 10 * 365 * 24 * HOUR}
    (tmp_path / ".lease").write_text(json.dumps(later))
    os.utime(tmp_path / ".lease", (time.time() - age,) * 2)
    with lease(tmp_path, SystemClock(), wait=0):
        pass


@pytest.mark.attack("something else than a file stands in place of a lease")
@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_lease_that_is_no_file_is_recovered(tmp_path, kind):
    path = tmp_path / ".lease"
    {"pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("/dev/zero"), "directory": path.mkdir}[kind]()
    os.utime(path, (time.time() - HOUR,) * 2, follow_symlinks=False)
    with lease(tmp_path, SystemClock(), wait=1):
        pass


def test_fresh_broken_lease_is_respected(tmp_path):
    (tmp_path / ".lease").write_text("")
    with pytest.raises(LeaseBusy), lease(tmp_path, SystemClock(), wait=0):
        pass


def test_holder_with_a_clock_that_is_fast_is_respected(tmp_path):
    """On a file server, the times of both files are the server's, whatever the clocks of the nodes."""
    ahead = {"host": "another", "pid": 1, "started": 1, "at": time.time() + 2 * LEASE_STALE_S}
    (tmp_path / ".lease").write_text(json.dumps(ahead))
    with pytest.raises(LeaseBusy), lease(tmp_path, SystemClock(), wait=0):
        pass


@pytest.mark.attack("a node whose clock is hours ahead takes the lease of a process that writes")
def test_reader_with_a_clock_that_is_fast_respects_the_holder(tmp_path):
    holder = {"host": "another", "pid": 1, "started": 1, "at": time.time()}
    (tmp_path / ".lease").write_text(json.dumps(holder))
    with pytest.raises(LeaseBusy), lease(tmp_path, ForwardClock(skew=timedelta(hours=6)), wait=0):
        pass


def test_lease_is_on_disk_before_it_counts(tmp_path, monkeypatch):
    order = []
    sync, link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda handle: order.append("fsync") or sync(handle))
    monkeypatch.setattr(os, "link", lambda *paths: order.append("link") or link(*paths))
    with lease(tmp_path, SystemClock()):
        assert order == ["fsync", "link"]
