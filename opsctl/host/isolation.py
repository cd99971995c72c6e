"""Many things at the same time, none of which may stop another: each in a thread of its own, with one deadline."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from opsctl.errors import OpsctlError
from opsctl.ports import Clock

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """What did not come to an answer."""

    why: str
    traceback: tuple[str, ...] = ()
    """Only for a bug in opsctl."""


@dataclass(slots=True)
class Isolation(Generic[Key, Answer]):
    """Runs them. What hangs, as on a file system that is gone, is left behind, and not begun again while it does."""

    clock: Clock
    timeout: float
    _stuck: dict[Key, threading.Thread] = field(default_factory=dict)

    def run(self, work: Mapping[Key, Callable[[], Answer]]) -> dict[Key, Answer | Failed]:
        """The answers of all, in the order given, within the timeout and hardly more."""
        answers: dict[Key, Answer | Failed] = {}
        self._stuck = {key: thread for key, thread in self._stuck.items() if thread.is_alive()}
        begun = {key: self._begin(key, call, answers) for key, call in work.items() if key not in self._stuck}
        until = self.clock.monotonic() + self.timeout
        for key, thread in begun.items():
            thread.join(max(0.0, until - self.clock.monotonic()))
            if thread.is_alive():
                self._stuck[key] = thread
        # What comes later than this is not taken: the answers would change under whoever reads them.
        late = Failed(why=f"no answer within {self.timeout:g} s")
        taken = dict(answers)
        return {key: taken.get(key, late) for key in work}

    def _begin(self, key: Key, call: Callable[[], Answer], answers: dict[Key, Answer | Failed]) -> threading.Thread:
        thread = threading.Thread(target=_answer, args=(key, call, answers), daemon=True, name=str(key))
        thread.start()
        return thread


def _answer(key: Key, call: Callable[[], Answer], answers: dict[Key, Answer | Failed]) -> None:
    try:
        answers[key] = call()
    except (OpsctlError, OSError) as error:
        answers[key] = Failed(why=str(error))
    except Exception as error:  # noqa: BLE001 (a bug in one of them must not stop the others; it is told)
        lines = traceback.format_exception(error)[-3:]
        why = f"a bug in opsctl: {type(error).__name__}: {error}"
        answers[key] = Failed(why=why, traceback=tuple("".join(lines).splitlines()))
