"""The time left of a run, with the waits between its attempts. `opsctl status` reads this module, and no models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev

from opsctl.calc.argument_checks import negative, not_positive, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Eta:
    """Seconds to the last step: the likely time, and bounds that hold in 8 of 10 cases."""

    training: float
    """The part spent in steps."""
    likely: float
    early: float
    late: float
    attempts: int
    """Attempts still to start, without the running attempt."""


def time_left(
    *,
    steps: int,
    step_s: float,
    attempt_s: float = math.inf,
    start_up_s: float = 0.0,
    waits_s: Sequence[float] = (),
    running_s: float | None = None,
) -> Eta:
    """Return the wall-clock time of `steps` steps, with a start-up and a wait before every new attempt.

    `running_s` is the time left of the running attempt, 0 without one; by default `attempt_s`. Waits are assumed
    independent: the sum of n waits spreads by √n times the spread of a single wait.
    """
    problems = [*negative(steps=steps, start_up_s=start_up_s), *not_positive(step_s=step_s)]
    if not attempt_s > start_up_s:
        problems.append(f"a task of {attempt_s:g} s ends before its start-up of {start_up_s:g} s does")
    refuse("time left", problems)
    training = steps * step_s
    attempts = _count_attempts(training, attempt_s - start_up_s, running_s)
    fixed = training + attempts * start_up_s
    if not (waits_s and attempts):
        return Eta(training=training, likely=fixed, early=fixed, late=fixed, attempts=attempts)
    spread = NormalDist().inv_cdf(0.9) * pstdev(waits_s) * math.sqrt(attempts)
    waiting = attempts * fmean(waits_s)
    early = fixed + max(attempts * min(waits_s), waiting - spread)
    return Eta(training=training, likely=fixed + waiting, early=early, late=fixed + waiting + spread, attempts=attempts)


def _count_attempts(training: float, usable_s: float, running_s: float | None) -> int:
    """Return the number of attempts still to start. Every attempt trains for `usable_s`."""
    rest = training - (usable_s if running_s is None else running_s)
    if rest <= 0:
        return 0
    return math.ceil(rest / usable_s) if math.isfinite(usable_s) else 1
