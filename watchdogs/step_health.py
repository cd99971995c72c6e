"""What the log says of the optimizer's steps: skipped steps, loss scale, gradient norm, steps without a loss. Pure.

An fp16 run whose loss scale has collapsed prints steps as before, skips all of them, and learns nothing.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from opsctl.base.findings import Severity
from opsctl.base.statements import Statement, Value, state
from opsctl.telemetry.progress.iteration import Iteration

MAX_SKIPPED_STEPS = 50
"""Steps skipped in a row. A dynamic loss scale starts high: it needs some twenty skipped steps to come down."""
WINDOW_LINES = 50
SKIPPED_SHARE = 0.2
"""Share of skipped steps in the window that is a warning."""
MIN_SKIPPED = 10
LOSS_SCALE_FLOOR = 1.0
FLOOR_LINES = 3
NAN_LINES = 3
"""Lines with a finite loss and a gradient norm that is not finite."""
NORM_JUMP = 20.0
MIN_NORMS, MAX_NORMS = 20, 50
JUMP_LINES = 10
"""Lines for which a jump of the gradient norm is reported."""
SILENT_LINES, SILENCES = 20, 3
"""Lines without a loss that are too many: at least this many, and this multiple of the longest earlier stretch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHealth:
    """The remembered facts about the optimizer's steps."""

    step: int = 0
    skipped_run: int = 0
    """Steps skipped in a row, up to the newest."""
    has_stepped: bool = False
    """Whether a step was made, not skipped, since the start or the last rollback."""
    window: tuple[tuple[int, int], ...] = ()
    """Steps and skipped steps of the newest lines, from the first step that was made."""
    skipped_total: int | None = None
    scale: float | None = None
    peak_scale: float = 0.0
    floor_lines: int = 0
    norms: tuple[float, ...] = ()
    nan_lines: int = 0
    jump: tuple[int, float, float] | None = None
    """Step, norm and usual norm of the last jump."""
    jump_lines: int = 0
    """Number of further lines for which the jump is reported."""
    has_jumped: bool = False
    """Whether a jump began in the lines of the last call of `advance`."""
    has_loss: bool = False
    silent_lines: int = 0
    longest_silence: int = 0
    begins: Mapping[str, int] = field(default_factory=dict)
    """The first step that may belong to the current run of bad lines, by the name of its counter."""

    @property
    def is_known(self) -> bool:
        """Whether the log states anything of the kind."""
        return self.scale is not None or bool(self.window or self.skipped_run or self.norms or self.silent_lines)


def advance(health: StepHealth, lines: Iterable[Iteration]) -> StepHealth:
    health = replace(health, has_jumped=False)
    for line in lines:
        if line.step == health.step:
            continue  # the same line twice
        if line.step < health.step:
            health = _roll_back(health)
        before, steps = health, line.step - health.step if health.step else 1
        health = _count_skipped(health, line, steps)
        health = _watch_norm(_watch_scale(health, line), line)
        health = _watch_silence(health, line)
        health = replace(health, step=line.step, begins=_find_begins(before, health, line.step))
    return health


RUNS = ("skipped_run", "floor_lines", "nan_lines", "silent_lines")
"""Counters of bad lines in a row."""


def _find_begins(before: StepHealth, after: StepHealth, step: int) -> dict[str, int]:
    """Return where each current run of bad lines began: after the last good line, or in a resumed train earlier."""
    begin = before.step + 1 if before.step else step
    runs = (name for name in RUNS if getattr(after, name))
    return {name: min(before.begins.get(name, begin), begin) for name in runs}


def _roll_back(health: StepHealth) -> StepHealth:
    """Return the facts of a train that resumed from an earlier checkpoint.

    Runs of bad lines go on, since one good line ends them: most trains resume after a time limit, in the same trouble.
    """
    return replace(health, step=0, has_stepped=False, window=(), skipped_total=None, jump_lines=0)


def _count_skipped(health: StepHealth, line: Iteration, steps: int) -> StepHealth:
    skipped = line.skipped
    if line.skipped_total is not None:
        before = health.skipped_total
        skipped = None if before is None else max(0, line.skipped_total - before)
        health = replace(health, skipped_total=line.skipped_total)
    if skipped is None:
        return health
    steps = max(steps, 1)
    skipped = min(skipped, steps)
    if skipped == steps:
        health = replace(health, skipped_run=health.skipped_run + steps)
    else:
        health = replace(health, skipped_run=0, has_stepped=True)
    if not health.has_stepped:
        return health
    return replace(health, window=(*health.window, (steps, skipped))[-WINDOW_LINES:])


def _watch_scale(health: StepHealth, line: Iteration) -> StepHealth:
    """A loss scale of 1 says something only where the scale was higher: bf16 runs print 1 always."""
    if line.loss_scale is None:
        return health
    peak = max(health.peak_scale, line.loss_scale)
    is_at_floor = line.loss_scale <= LOSS_SCALE_FLOOR < peak
    lines = health.floor_lines + 1 if is_at_floor else 0
    return replace(health, scale=line.loss_scale, peak_scale=peak, floor_lines=lines)


def _watch_norm(health: StepHealth, line: Iteration) -> StepHealth:
    norm = line.grad_norm
    if norm is None:
        return health
    health = replace(health, jump_lines=max(0, health.jump_lines - 1))
    if not math.isfinite(norm):
        has_loss = line.loss is not None and math.isfinite(line.loss)
        return replace(health, nan_lines=health.nan_lines + 1) if has_loss and not line.skipped else health
    health = replace(health, nan_lines=0)
    usual = median(health.norms) if len(health.norms) >= MIN_NORMS else 0.0
    if usual > 0 and norm > NORM_JUMP * usual:
        return replace(health, jump=(line.step, norm, usual), jump_lines=JUMP_LINES, has_jumped=True)
    return replace(health, norms=(*health.norms, norm)[-MAX_NORMS:])


def _watch_silence(health: StepHealth, line: Iteration) -> StepHealth:
    """Many trainers state the loss in every tenth line only: the usual stretch without a loss is learnt."""
    if line.loss is None and not line.nans:
        return replace(health, silent_lines=health.silent_lines + 1)
    longest = max(health.longest_silence, health.silent_lines)
    return replace(health, has_loss=True, silent_lines=0, longest_silence=longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProblem:
    severity: Severity
    says: Statement
    since_step: int | None


def find_problems(health: StepHealth) -> list[StepProblem]:
    """Return every problem, the worst first."""
    problems: list[StepProblem] = []

    def add(severity: Severity, kind: str, since: int | None, **facts: Value) -> None:
        problems.append(StepProblem(severity=severity, says=state(f"steps.{kind}", **facts), since_step=since))

    begins = health.begins
    if health.skipped_run >= MAX_SKIPPED_STEPS:
        add(Severity.CRITICAL, "all_skipped", begins.get("skipped_run"), steps=health.skipped_run)
    if health.floor_lines >= FLOOR_LINES:
        figures = {"scale": health.scale, "lines": health.floor_lines, "peak": health.peak_scale}
        add(Severity.CRITICAL, "scale_at_floor", begins.get("floor_lines"), **figures)
    if health.nan_lines >= NAN_LINES:
        add(Severity.CRITICAL, "gradient_nan", begins.get("nan_lines"), lines=health.nan_lines)
    if health.has_loss and health.silent_lines >= max(SILENT_LINES, SILENCES * health.longest_silence):
        add(Severity.CRITICAL, "no_loss", begins.get("silent_lines"), lines=health.silent_lines)
    if health.jump and (health.jump_lines or health.has_jumped):
        step, norm, usual = health.jump
        add(Severity.WARNING, "gradient_jump", step, step=step, norm=norm, usual=usual)
    steps, skipped = (sum(counts) for counts in zip(*health.window, strict=True)) if health.window else (0, 0)
    if skipped >= MIN_SKIPPED and skipped >= SKIPPED_SHARE * steps and not health.skipped_run >= MAX_SKIPPED_STEPS:
        add(Severity.WARNING, "many_skipped", health.step - steps + 1, skipped=skipped, steps=steps)
    return problems
