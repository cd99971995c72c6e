"""Whether the trainer starts again in the same allocation, and on which of its nodes: by the table restart.toml."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache

from pydantic import TypeAdapter

from opsctl.base.tables import read_package_table
from opsctl.guard.end_record import Action, FinishedAttempt, Outcome
from opsctl.settings.loader import GuardSettings
from opsctl.state.reasons import ReasonKind

START_S = 120.0
"""Time for the start of a trainer, if its task is long enough."""
START_SHARE = 0.2
"""The same as a share of the time limit of a short task."""
WINDOW = timedelta(hours=1)
MAX_DOUBLED = 30
"""A longer pause would be above any limit, and the power above any number."""


class Then(StrEnum):
    """What becomes of the allocation."""

    SAME_NODES = "same-nodes"
    OTHER_NODES = "other-nodes"
    REPAIR = "repair"
    """The nodes wait for a person who repairs the train."""
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    """One row of restart.toml."""

    then: Then
    why: str
    outcomes: tuple[Outcome, ...] = ()
    actions: tuple[Action, ...] = ()
    reasons: tuple[ReasonKind, ...] = ()
    bad_nodes: bool | None = None

    def fits(self, ended: FinishedAttempt) -> bool:
        return (
            (not self.outcomes or ended.outcome in self.outcomes)
            and (not self.actions or ended.action in self.actions)
            and (not self.reasons or (ended.reason is not None and ended.reason.kind in self.reasons))
            and (self.bad_nodes is None or self.bad_nodes == bool(ended.suspects))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNodes:
    """The nodes of a running job, and its time."""

    usable: tuple[str, ...]
    """The nodes that may be used, in Slurm's order."""
    used: tuple[str, ...]
    """Those on which the last start ran its ranks."""
    needed: int
    left_s: float | None
    """Time until the ranks must have saved; None without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What becomes of the allocation."""

    nodes: tuple[str, ...] = ()
    """The nodes of the next start; empty if the allocation goes back."""
    usable: tuple[str, ...] = ()
    """All nodes that may be used from now on: those of the next start and its spares."""
    why: str
    repair_s: float = 0.0
    """How long the nodes wait for a repair before the next start; without one, they go back."""
    pause_s: float = 0.0
    """How long to wait before the next start, so that a cause outside the train may pass."""

    @property
    def spares(self) -> tuple[str, ...]:
        return tuple(node for node in self.usable if node not in self.nodes)


@cache
def restart_rules() -> tuple[RestartRule, ...]:
    """Return the rows of restart.toml."""
    rows = read_package_table("guard/restart.toml")["rule"]
    return TypeAdapter(tuple[RestartRule, ...]).validate_python(rows)


def decide_restart(
    ended: FinishedAttempt, starts: Sequence[FinishedAttempt], allocation: JobNodes, rules: GuardSettings
) -> Restart:
    """Return the nodes of the next start in this allocation, or why the allocation goes back.

    `starts` are the finalized starts in this allocation, `ended` included.
    """
    rule = find_rule(ended)
    if not rules.restart_in_place:
        return Restart(why="[guard] restart_in_place is false")
    if rule.then is Then.END or (rule.then is Then.REPAIR and not rules.wait_for_repair):
        return Restart(why=rule.why)
    if why := _find_obstacle(ended, starts, allocation, rules):
        return Restart(why=why)
    usable = tuple(node for node in allocation.usable if node not in ended.suspects)
    if len(usable) < allocation.needed:
        return Restart(why=f"{len(usable)} good nodes are left of the {allocation.needed} that the train needs")
    return Restart(
        nodes=choose_nodes(usable, allocation.used),
        usable=usable,
        why=rule.why,
        repair_s=min(rules.wait_for_repair, _find_spare_time(ended, allocation)) if rule.then is Then.REPAIR else 0.0,
        pause_s=find_pause_s(starts),
    )


def find_rule(ended: FinishedAttempt) -> RestartRule:
    """Return the row of restart.toml for an end."""
    return next(rule for rule in restart_rules() if rule.fits(ended))


def choose_nodes(usable: Sequence[str], used: Sequence[str]) -> tuple[str, ...]:
    """Return as many usable nodes as were used: each keeps its place, and a spare takes the place of a lost node.

    So the ranks of all other nodes stay what they were, with their neighbours in the network.
    """
    spares = iter([node for node in usable if node not in used])
    return tuple(node if node in usable else next(spares) for node in used)


def find_pause_s(starts: Sequence[FinishedAttempt]) -> float:
    """Return how long to wait before the next start: longer each time that the same cause outside the train repeats."""
    pause, repeated = read_package_table("guard/restart.toml")["pause"], 0
    for start in reversed(starts):
        is_same = start.kind in pause["kinds"] and start.cause == starts[-1].cause and not start.suspects
        if start.new_checkpoint or not is_same:
            break
        repeated += 1
    doubled = 2.0 ** min(repeated - 2, MAX_DOUBLED)
    return min(pause["longest_s"], pause["first_s"] * doubled) if repeated > 1 else 0.0


def _find_obstacle(
    ended: FinishedAttempt, starts: Sequence[FinishedAttempt], allocation: JobNodes, rules: GuardSettings
) -> str:
    """Return why no further start would help, empty if one may."""
    if _find_spare_time(ended, allocation) < 0:
        needed_s = _measure_start_s(ended)
        return f"{allocation.left_s:.0f} s are left, and a start with one checkpoint takes {needed_s:.0f} s"
    if find_rule(ended).then is Then.REPAIR:
        return ""  # a person decides
    futile = [start for start in starts if start.ended > ended.ended - WINDOW and not start.new_checkpoint]
    if len(futile) >= rules.restarts_per_hour:
        return f"{len(futile)} starts within an hour brought no new checkpoint"
    return ""


def _measure_start_s(ended: FinishedAttempt) -> float:
    """Return how long a start with one checkpoint takes."""
    limit_s = 60 * (ended.limit_minutes or 0)
    start_s = min(START_S, START_SHARE * limit_s) if limit_s else START_S
    return start_s + 60 * (ended.save_gap_minutes or 0)


def _find_spare_time(ended: FinishedAttempt, allocation: JobNodes) -> float:
    """Return how long the next start can wait and still reach a checkpoint; below 0 if there is too little time."""
    return math.inf if allocation.left_s is None else allocation.left_s - _measure_start_s(ended)
