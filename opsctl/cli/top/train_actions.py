"""What the keys of `opsctl top` do to a train, each after a question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opsctl.monitor.status import TrainStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainAction:
    """One action."""

    question: str
    needs_reason: bool
    make_words: Callable[[str, str], list[str]]
    """The command line, from the target and the reason. No value can become an option."""
    find_target: Callable[[TrainStatus], str] = lambda status: status.train
    """The target of the command; empty if there is none."""
    missing: str = ""
    """The message without a target."""


def _find_alert(status: TrainStatus) -> str:
    """Return the key of the worst alert that is not acknowledged."""
    return next((alert.key for alert in status.alerts if not alert.acknowledged), "")


ACTIONS = {
    "hold": TrainAction(
        question="Hold the queued tasks of {}? The running task continues. If the job is not yours, the pause switch is"
        " armed instead: the running task is asked to save and stop.",
        needs_reason=True,
        make_words=lambda train, reason: ["hold", f"--reason={reason}", "--", train],
    ),
    "release": TrainAction(
        question="Release {}? Its queued tasks may start.",
        needs_reason=False,
        make_words=lambda train, _reason: ["release", "--", train],
    ),
    "ack": TrainAction(
        question="Acknowledge the alert {}? opsctl repeats the alert only if the alert gets worse.",
        needs_reason=True,
        make_words=lambda key, reason: ["alerts", "ack", f"--reason={reason}", "--", key],
        find_target=_find_alert,
        missing="Every open alert of this train is acknowledged.",
    ),
}
