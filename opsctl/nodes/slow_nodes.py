"""Slow nodes, by the ranks' own step times: each node against its partners, over attempts with different partners.

A slow node is a hint for people. Nothing is excluded, drained or scored for it. Pure, but for the reading of the files.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from statistics import median, median_low

from opsctl.state.files import find_matches
from opsctl.trainer.contract import RankStepTimes, read_step_times

MAX_RANKS = 1 << 16
MIN_STEPS = 20
"""A rank with fewer measured steps is not compared: the first steps include warm-up."""
MIN_NODES = 3
"""Nodes with the same work from which on one can be called slow: of two, either may be the odd one."""
SLOW_RATIO = 1.1
MIN_ATTEMPTS = 3
MIN_PARTNER_SETS = 2
"""A node is slow only with different partners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeRatio:
    """A node against its partners in one attempt."""

    at: float
    """The end of the attempt, in seconds since the epoch."""
    ratio: float
    """The step time of the node's slowest rank over the median of the nodes' slowest ranks, with the same work."""
    local_rank: int
    """The slowest rank, by its number on the node."""
    nodes: int
    """Nodes that were compared, this one included."""
    partners: str
    """A hash of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpeed:
    """A node against its partners over many attempts."""

    ratio: float
    """Median over the sets of partners; the lower one of two."""
    attempts: int
    partner_sets: int
    is_slow: bool
    local_rank: int | None
    """The rank on the node that was the slowest in most attempts; None without such a rank."""

    def __str__(self) -> str:
        """Return such as `1.18x`, or `1.18x slow (local rank 3)`."""
        where = "" if self.local_rank is None else f" (local rank {self.local_rank})"
        return f"{self.ratio:.2f}x" + (f" slow{where}" if self.is_slow else "")


def read_times(directory: Path, nodes: Collection[str]) -> list[RankStepTimes]:
    """Return the step times that ranks on `nodes` wrote into a directory. Unreadable files are left out."""
    records = map(read_step_times, islice(find_matches(directory, "*.json", max_entries=MAX_RANKS), MAX_RANKS))
    return [times for times in records if times and times.node in nodes]


def compare_nodes(times: Iterable[RankStepTimes], at: datetime) -> dict[str, StepTimeRatio]:
    """Return the ratio of each node whose work at least two other nodes share.

    A synchronous training waits for its slowest rank, so a node counts as its slowest rank: the median over eight GPUs
    would hide one slow GPU. All nodes count alike, so that the highest of several values favours none. A node with
    several kinds of work has the highest of its ratios.
    """
    slowest_by_work: dict[str, dict[str, RankStepTimes]] = {}
    for rank in sorted(times, key=lambda rank: -rank.compute_s):
        if rank.steps >= MIN_STEPS:
            slowest_by_work.setdefault(rank.work, {}).setdefault(rank.node, rank)
    ratios: dict[str, StepTimeRatio] = {}
    for nodes in slowest_by_work.values():
        if len(nodes) >= MIN_NODES:
            for node, ratio in _compare(nodes, at).items():
                ratios[node] = max(ratio, ratios.get(node, ratio), key=lambda ratio: ratio.ratio)
    return ratios


def _compare(nodes: Mapping[str, RankStepTimes], at: datetime) -> dict[str, StepTimeRatio]:
    usual_s = median(slowest.compute_s for slowest in nodes.values())
    partners = hashlib.sha256("\n".join(sorted(nodes)).encode(errors="replace")).hexdigest()[:16]
    return {
        node: StepTimeRatio(
            at=at.timestamp(),
            ratio=round(slowest.compute_s / usual_s, 4),
            local_rank=slowest.local_rank,
            nodes=len(nodes),
            partners=partners,
        )
        for node, slowest in nodes.items()
    }


def judge_speed(ratios: Iterable[StepTimeRatio], now: datetime, days: float) -> NodeSpeed | None:
    """Return a node's speed over the attempts of the last `days`; None without any.

    Attempts with the same partners count as one, by their median: else a train that runs for weeks on the same nodes
    would outvote all others. The node is slow if it was so in most sets of partners, and in both of two.
    """
    since = (now - timedelta(days=days)).timestamp()
    recent = [ratio for ratio in ratios if ratio.at >= since]
    by_partners: dict[str, list[float]] = {}
    for ratio in recent:
        by_partners.setdefault(ratio.partners, []).append(ratio.ratio)
    if not recent:
        return None
    value = median_low(median(group) for group in by_partners.values())
    is_repeated = len(recent) >= MIN_ATTEMPTS and len(by_partners) >= MIN_PARTNER_SETS
    local_rank, count = Counter(ratio.local_rank for ratio in recent).most_common(1)[0]
    return NodeSpeed(
        ratio=round(value, 3),
        attempts=len(recent),
        partner_sets=len(by_partners),
        is_slow=is_repeated and value >= SLOW_RATIO,
        local_rank=local_rank if 2 * count > len(recent) else None,
    )
