"""The event with the score of a drill. Whoever does not import it reads it as an event of an unknown kind."""

from dataclasses import field

from opsctl.state.events import Event, event


@event("drilled")
class Drilled(Event):
    """What opsctl did about a fault; docs/how-to/drill.md explains the fields. None and empty: not known."""

    fault: str
    noticed_s: float | None = None
    cause: str = ""
    action: str = ""
    alerts: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    recipients: tuple[str, ...] = ()
    steps_lost: int | None = None
    back_s: float | None = None
    wrong: tuple[str, ...] = ()
    why: str = ""
    save_s: float | None = None
    lost_s: dict[str, float] = field(default_factory=dict)
