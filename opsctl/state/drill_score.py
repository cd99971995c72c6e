"""The event with the score of a drill. Whoever does not import it reads it as an event of an unknown kind."""

from dataclasses import field

from opsctl.state.events import Event, event


@event("drilled")
class Drilled(Event):
    """What opsctl did about a fault of a drill. None and empty: nothing, or not known."""

    fault: str
    noticed_s: float | None = None
    """From the fault to the first event about it, or to the first alert."""
    cause: str = ""
    action: str = ""
    alerts: tuple[str, ...] = ()
    """The watchdogs that raised an alert, the channels that delivered it, and their mail addresses."""
    channels: tuple[str, ...] = ()
    recipients: tuple[str, ...] = ()
    steps_lost: int | None = None
    back_s: float | None = None
    """From the fault to the first step after it; `steps_lost` were done twice."""
    wrong: tuple[str, ...] = ()
    why: str = ""
    """Demands of the table of faults that are not met; and why the train could not be broken, empty if it was."""
    save_s: float | None = None
    lost_s: dict[str, float] = field(default_factory=dict)
    """Mean time of a save; and the seconds that the train lost, by the causes of its report."""
