"""The shared view of the site: refreshed in the background at a bounded rate, and only while pages are open."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from opsctl.base.ports import Clock
from opsctl.dash.collect_site import SiteView
from opsctl.dash.train_detail import TrainDetail

log = logging.getLogger(__name__)

IDLE_AFTER_S = 90.0
"""Without a request for this time, Slurm is not asked any more."""
FIRST_WAIT_S = 20.0
"""A request waits this long for the first view."""
SOON_S = 3.0
"""After an action, the next refresh comes no earlier than this after the last."""
DETAIL_EVERY_S = 120.0
"""A train's whole log is read again no earlier than this."""


@dataclass(slots=True)
class _Detail:
    value: TrainDetail | str | None = None
    read_at: float = float("-inf")
    wanted_at: float = float("-inf")


@dataclass(slots=True)
class Refresher:
    """Holds the newest view, and reads the next in a thread of its own. All viewers share one refresh."""

    collect: Callable[[], SiteView]
    read_detail: Callable[[str], TrainDetail | str]
    """The slow part of a train's page, by name."""
    clock: Clock
    every_s: float
    version: int = 0
    """Grows with every change that pages show."""
    view: SiteView | None = None
    problem: str = ""
    """Why the last refresh failed; empty after a refresh that worked."""
    _wanted_at: float = float("-inf")
    _began_at: float = float("-inf")
    _details: dict[str, _Detail] = field(default_factory=dict)
    _wake: threading.Event = field(default_factory=threading.Event)
    _detail_wake: threading.Event = field(default_factory=threading.Event)
    _ready: threading.Event = field(default_factory=threading.Event)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        for work in (self._refresh_forever, self._read_details_forever):
            threading.Thread(target=work, daemon=True, name=f"dash {work.__name__}").start()

    def stop(self) -> None:
        self._stopped.set()
        for event in (self._wake, self._detail_wake):
            event.set()

    def note_viewer(self) -> None:
        """Record that a viewer is there."""
        was_idle = self.clock.monotonic() - self._wanted_at > IDLE_AFTER_S
        self._wanted_at = self.clock.monotonic()
        if was_idle:
            self._wake.set()

    def current(self) -> SiteView | None:
        """Return the newest view, whatever its age; None if there is none yet after a bounded wait."""
        self.note_viewer()
        self._ready.wait(FIRST_WAIT_S)
        return self.view

    def hurry(self) -> None:
        """Refresh soon, because something was changed."""
        self._began_at = min(self._began_at, self.clock.monotonic() - self.every_s + SOON_S)
        self._wanted_at = self.clock.monotonic()
        self._wake.set()

    def detail(self, train: str) -> TrainDetail | str | None:
        """Return the slow part of a train's page; None until it is read for the first time."""
        detail = self._details.setdefault(train, _Detail())
        detail.wanted_at = self.clock.monotonic()
        self._detail_wake.set()
        return detail.value

    # --- the threads

    def _refresh_forever(self) -> None:
        while not self._stopped.is_set():
            now = self.clock.monotonic()
            is_wanted = now - self._wanted_at <= IDLE_AFTER_S
            wait_s = self._began_at + self.every_s - now if is_wanted else IDLE_AFTER_S
            if wait_s > 0 or not is_wanted:
                self._wake.wait(max(0.05, wait_s))
                self._wake.clear()
                continue
            self._began_at = now
            self.refresh()

    def refresh(self) -> None:
        """Read the view now. A failure leaves the old view, whose age the pages show."""
        try:
            self.view = self.collect()
            self.problem = ""
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
            log.exception("refreshing the view failed")
        self.version += 1
        self._ready.set()

    def _read_details_forever(self) -> None:
        while not self._stopped.is_set():
            self._detail_wake.wait(10.0)
            self._detail_wake.clear()
            for train, detail in list(self._details.items()):
                now = self.clock.monotonic()
                if now - detail.wanted_at > IDLE_AFTER_S or now - detail.read_at < DETAIL_EVERY_S:
                    continue
                detail.value = self.read_detail(train)
                detail.read_at = self.clock.monotonic()
                self.version += 1
