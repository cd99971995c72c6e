"""The number of spare nodes needed. Failures are assumed independent, at a constant rate."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from opsctl.calc.argument_checks import refuse


def failures_per_week(nodes: int, per_1000_node_days: float) -> float:
    """Return nodes times days times rate (Meta, arXiv 2410.21680: 6.50 and 2.34 per 1000 node-days on two clusters)."""
    return nodes * 7 * per_1000_node_days / 1000


def mtbf_hours(nodes: int, per_1000_node_days: float) -> float:
    """Return the mean time between failures of a job on `nodes`: 1 / (N·r) (same paper)."""
    return 24 * 1000 / (nodes * per_1000_node_days)


def out_at_once(nodes: int, per_1000_node_days: float, repair_days: float) -> float:
    """Return the mean number of nodes under repair (Little's law)."""
    return failures_per_week(nodes, per_1000_node_days) / 7 * repair_days


def enough(expected: float) -> Iterator[float]:
    """Yield the probabilities that 0, 1, 2… spares are enough if `expected` nodes are out on average (Poisson)."""
    term, total, count = math.exp(-expected), 0.0, 0
    while True:
        total += term
        yield min(total, 1.0)
        count += 1
        term *= expected / count


def not_a_confidence(confidence: float) -> Iterator[str]:
    if not 0 < confidence < 1:
        yield f"confidence is {confidence:g}, needs to be between 0 and 1, and neither"


def spares(expected: float, confidence: float) -> int:
    """Return the fewest spares that are enough with at least this probability."""
    refuse("spares", not_a_confidence(confidence))
    if expected > 500:  # exp() underflows above; the Poisson distribution is close to normal long before
        from statistics import NormalDist  # noqa: PLC0415 (only for clusters of many thousands)

        return math.ceil(NormalDist(expected, math.sqrt(expected)).inv_cdf(confidence))
    return next(count for count, known in enumerate(enough(expected)) if known >= confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpares:
    """Spare nodes of a task, with their cost and gain. Means over tasks that run to their time limit."""

    count: int
    lost: float
    """Nodes lost in a task."""
    replaced: float
    """Those that a spare node replaces."""
    saved_h: float
    """Time in the queue that a task saves."""
    cost: float
    """Share of the node hours that the spare nodes take."""


MAX_TASK_SPARES = 100


def plan_task_spares(nodes: int, per_1000_node_days: float, *, task_h: float, queue_h: float) -> TaskSpares:
    """Return the number of spare nodes in a task that pays, with its gain.

    The nodes lost in a task follow a Poisson distribution of mean N·r·T (rate and law as in `mtbf_hours`). The k-th
    spare node is used with the probability P(K >= k), and then saves N nodes one wait in the queue, at the cost of T
    hours of one node. It pays as long as P(K >= k)·(N - 1)·Q > T: the critical ratio of the newsvendor problem. N - 1,
    because the death of the first node costs the task, whatever spares there are.
    """
    lost = nodes * per_1000_node_days / 1000 * task_h / 24
    used = [1 - known for known in islice(enough(lost), MAX_TASK_SPARES)]
    count = sum(probability * (nodes - 1) * queue_h > task_h for probability in used)
    replaced = sum(used[:count]) * (nodes - 1) / nodes
    return TaskSpares(
        count=count, lost=lost, replaced=replaced, saved_h=replaced * queue_h, cost=count / (nodes + count)
    )
