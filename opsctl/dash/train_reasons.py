"""Why a train is in its state, the line that proves it, and what to do about it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from opsctl.base.errors import InputError
from opsctl.base.nodesets import expand
from opsctl.dash.train_headline import PLANNED, count_same_cause, find_cause, name_attempt
from opsctl.diagnosis.excerpt import find_matched_line
from opsctl.monitor.status import LastAttempt, TrainStatus
from opsctl.state.journal import TrainHistory

STUCK_AT = re.compile(r"made no progress beyond step (\d+)")
EXCLUDE = re.compile(r"^Exclude the node(?:[;,.]\s*|$)")
NEEDED = re.compile(r"before a release, (?P<change>[^;]*?)(?: \((?P<command>opsctl [a-z-]+)\))?$")
"""End of the reason of a hold, by opsctl.guard.hold_rules: what has to change, and the command for the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """One thing to do: a sentence and its command. The command may be empty."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReason:
    """What the page says below the headline. Empty texts are not shown."""

    why: str = ""
    evidence: str = ""
    steps: tuple[NextStep, ...] = ()
    """What to do, in this order."""


def explain(status: TrainStatus, history: TrainHistory, excluded: Collection[str]) -> StateReason:
    """Return the reason of a held or ended train; empty for any other."""
    last = status.last_attempt
    is_held = status.state == "held"
    if is_held and (last is None or last.action != "hold-queued" or last.outcome in PLANNED):
        return StateReason(steps=(NextStep(text="Release the train.", command=f"opsctl release {status.train}"),))
    if status.state not in {"held", "ended"} or last is None:
        return StateReason()
    diagnosis = history.diagnosed.get(last.attempt)
    cause, node = (str(diagnosis.data[key]) if diagnosis else "" for key in ("cause", "node"))
    lines = [str(line) for line in diagnosis.data["evidence"]] if diagnosis else []
    return StateReason(
        why=_describe_end(status, history, last),
        evidence=find_matched_line(cause, lines),
        steps=tuple(_list_steps(status, last, advise(last.advice, node, excluded))),
    )


def _list_steps(status: TrainStatus, last: LastAttempt, advice: str) -> Iterator[NextStep]:
    """Yield the fix, and the release of a held train after the fix."""
    if status.state != "held":
        yield NextStep(text=advice or "Find the cause of the end.", command=f"opsctl why {status.train}")
        return
    needed = NEEDED.search(last.why)
    change = needed["change"] if needed else "find and remove the cause"
    command = needed["command"] or "" if needed else "opsctl why"
    yield NextStep(
        text=" ".join(filter(None, (f"Before the release, {change}.", advice))),
        command=f"{command} {status.train}" if command else "",
    )
    yield NextStep(text="Then release the train.", command=f"opsctl release {status.train}")


def _describe_end(status: TrainStatus, history: TrainHistory, last: LastAttempt) -> str:
    """Return one sentence with one count: `None of the 6 attempts got beyond step 130; checkpoint: step 100.`"""
    count, found = count_same_cause(history, last.attempt), STUCK_AT.search(last.why)
    parts = []
    if not find_cause(status, history):
        parts.append(f"{name_attempt(last.attempt, history)} {last.outcome}: {last.why.partition(';')[0]}")
    if found:
        who = f"None of the {count} attempts" if count > 1 else "No attempt"
        parts.append(f"{who} got beyond step {int(found[1]):,}")
    saved = status.progress.checkpoint_step if status.progress else None
    is_stuck = not found and any(words in last.why for words in ("without progress", "made no progress"))
    if is_stuck and saved is not None:
        parts.append(f"no progress since the checkpoint of step {saved:,}")
    elif parts or count:
        parts.append(f"newest checkpoint: step {saved:,}" if saved is not None else "no checkpoint yet")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


def advise(advice: str, nodes: str, excluded: Collection[str]) -> str:
    """Return the advice without the exclusion of nodes that are excluded already."""
    try:
        is_excluded = bool(nodes) and set(expand(nodes)) <= set(excluded)
    except InputError:
        is_excluded = False
    shorter = EXCLUDE.sub("", advice) if is_excluded else advice
    return shorter[:1].upper() + shorter[1:]
