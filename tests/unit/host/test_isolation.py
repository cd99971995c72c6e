"""Isolation: a watchdog that fails or hangs stops no other."""

import threading
import time

from opsctl.base.errors import OpsctlError
from opsctl.host.isolation import Failed, Isolation
from opsctl.host.system import SystemClock


class LeapingClock(SystemClock):
    """A clock that shows the given times in order, then the last one for ever."""

    def __init__(self, *times: float) -> None:
        self.times = [*times]

    def monotonic(self) -> float:
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


def test_failing_watchdog_does_not_stop_the_others() -> None:
    def broken() -> int:
        raise OpsctlError("no such quota")

    def crash() -> int:
        return int(str(None)[9])

    answers: dict[str, int | Failed] = Isolation(SystemClock(), 100).run({"a": broken, "b": crash, "c": lambda: 3})
    assert (answers["a"], answers["c"]) == (Failed(why="no such quota"), 3)
    failed = answers["b"]
    assert isinstance(failed, Failed) and failed.why == "a bug in opsctl: IndexError: string index out of range"
    assert any("in crash" in line for line in failed.traceback)


def test_hanging_watchdog_is_not_started_again() -> None:
    gate, begun = threading.Event(), []

    def hangs() -> int:
        begun.append(1)
        gate.wait(300)
        return 1

    isolation = Isolation[str, int](LeapingClock(0, -1000, 9), 9)  # after "b" has answered, the time is up
    late = Failed(why="no answer within 9 s")
    assert isolation.run({"b": lambda: 2, "a": hangs}) == {"a": late, "b": 2}
    assert isolation.run({"a": hangs}) == {"a": late}
    assert begun == [1]
    gate.set()
    while any(thread.name == "a" for thread in threading.enumerate()):
        time.sleep(0.01)
    isolation.clock = SystemClock()
    assert isolation.run({"a": hangs}) == {"a": 1}
