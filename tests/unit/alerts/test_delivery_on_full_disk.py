"""Deliveries that the outbox cannot record: on a file system that is full, or becomes read-only, during the sending."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from opsctl.base.errors import RunDirError
from tests.support.mounts import mounting
from tests.unit.alerts.conftest import World
from tests.unit.alerts.test_outbox import FakeChannel


class Outboxes:
    """The site's outbox on a small file system, and the spare outbox on another one."""

    def __init__(self, world: World) -> None:
        self.disk = world.site.path
        self.main, self.spare = (FakeChannel(site, world.clock) for site in (world.site, world.spare))
        first, second = self.main.outbox, self.spare.outbox
        self.main.outbox, self.spare.outbox = replace(first, other=second), replace(second, other=first)
        self.main.put(1, "a.1")

    @property
    def sent(self) -> list[str]:
        return [*self.main.sent, *self.spare.sent]

    def flush(self) -> None:
        """Flush as a watch cycle does: what the site's outbox cannot record, the spare outbox sends."""
        try:
            self.main.flush()
        except RunDirError:
            for item in self.main.outbox.waiting():
                self.spare.outbox.put(item)
        with contextlib.suppress(RunDirError):
            self.spare.flush()

    def fill(self) -> None:
        with (self.disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))

    def remount(self, mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.disk)], check=True)

    def deliver_while(self, happens) -> None:
        """Deliver the message; meanwhile, `happens`."""

        def deliver(item):
            happens()
            return self.main.deliver(item)

        self.main.outbox.flush("mail", deliver, lambda item: "")

    def end_leases(self) -> None:
        """Age the lease that could not be given back."""
        for lock in self.disk.rglob(".lease"):
            os.utime(lock, (0, 0))
        self.main.clock.forward(minutes=10)


@pytest.fixture
def outboxes(world: World) -> Iterator[Outboxes]:
    disk = world.site.path
    disk.mkdir(parents=True)
    with mounting(disk, "size=200k,mode=755"):
        world.site.create()
        yield Outboxes(world)


@pytest.mark.root
def test_disk_that_fills_up_during_delivery_doubles_nothing(outboxes):
    outboxes.deliver_while(outboxes.fill)
    for _ in range(3):
        outboxes.flush()
    (outboxes.disk / "filler").unlink()
    outboxes.flush()
    assert (outboxes.sent, outboxes.main.waiting) == (["a.1"], [])


@pytest.mark.root
def test_sender_before_the_disk_was_full_is_respected(outboxes):
    def fill_and_flush():
        outboxes.fill()
        outboxes.flush()  # another watcher, which can take no lease

    outboxes.deliver_while(fill_and_flush)
    assert (outboxes.sent, outboxes.main.waiting, outboxes.spare.waiting) == (["a.1"], [], [])


@pytest.mark.root
def test_delivery_is_recorded_in_the_spare_outbox(outboxes):
    outboxes.deliver_while(lambda: outboxes.remount("ro"))
    for _ in range(3):
        outboxes.flush()
    assert outboxes.sent == ["a.1"]
    outboxes.remount("rw")
    outboxes.end_leases()
    outboxes.flush()
    assert (outboxes.sent, outboxes.main.waiting) == (["a.1"], [])


@pytest.mark.root
def test_delivery_without_any_record_is_remembered(outboxes):
    outboxes.spare.outbox.site.path.write_text("")  # neither outbox can be written
    outboxes.deliver_while(lambda: outboxes.remount("ro"))
    outboxes.remount("rw")
    outboxes.end_leases()
    outboxes.flush()
    assert (outboxes.sent, outboxes.main.waiting) == (["a.1"], [])
