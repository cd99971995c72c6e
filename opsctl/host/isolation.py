"""Run calls in parallel threads with a common deadline, so that no call can block another call."""

import threading
import traceback
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from opsctl.base.errors import OpsctlError
from opsctl.base.ports import Clock

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A call without an answer."""

    why: str
    traceback: tuple[str, ...] = ()
    """Set only for a bug in opsctl."""


@dataclass(slots=True)
class Isolation(Generic[Key, Answer]):
    """Runs calls. A call that hangs, as on a lost file system, is abandoned and not repeated while it hangs."""

    clock: Clock
    timeout: float
    _stuck: dict[Key, threading.Thread] = field(default_factory=dict)

    def run(self, work: Mapping[Key, Callable[[], Answer]]) -> dict[Key, Answer | Failed]:
        """Return all answers in the order of `work`, within little more than the timeout."""
        answers: dict[Key, Answer | Failed] = {}
        self._stuck = {key: thread for key, thread in self._stuck.items() if thread.is_alive()}
        started = {key: self._start(key, call, answers) for key, call in work.items() if key not in self._stuck}
        deadline = self.clock.monotonic() + self.timeout
        for key, thread in started.items():
            thread.join(max(0.0, deadline - self.clock.monotonic()))
            if thread.is_alive():
                self._stuck[key] = thread
        # A copy: late answers must not change the result while the caller reads the result.
        late = Failed(why=f"no answer within {self.timeout:g} s")
        in_time = dict(answers)
        return {key: in_time.get(key, late) for key in work}

    def _start(self, key: Key, call: Callable[[], Answer], answers: dict[Key, Answer | Failed]) -> threading.Thread:
        thread = threading.Thread(target=_answer, args=(key, call, answers), daemon=True, name=str(key))
        thread.start()
        return thread


def _answer(key: Key, call: Callable[[], Answer], answers: dict[Key, Answer | Failed]) -> None:
    try:
        answers[key] = call()
    except (OpsctlError, OSError) as error:
        answers[key] = Failed(why=str(error))
    except Exception as error:  # noqa: BLE001 (a bug in one call must not stop the others; the bug is reported)
        lines = traceback.format_exception(error)[-3:]
        why = f"a bug in opsctl: {type(error).__name__}: {error}"
        answers[key] = Failed(why=why, traceback=tuple("".join(lines).splitlines()))
