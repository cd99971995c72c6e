"""Stopping in time: signals, deadlines and switches."""

import re
from collections.abc import Iterator

from opsctl.checkpoints.trainer_command.shell import strip_comments
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, error_if, note, warning
from opsctl.preflight.step_estimate import estimate_step
from opsctl.slurm.batch_options import find_values
from opsctl.state.switches import Switch

PLACEHOLDERS = ("stop_request", "minutes_left", "deadline_file", "kill_switch", "pause_switch")
"""Placeholders that tell a command when to stop."""
VARIABLES = (
    "TRAIN_STOP_REQUEST",
    "TRAIN_MINUTES_LEFT",
    "TRAIN_DEADLINE",
    "TRAIN_KILL_SWITCH",
    "opsctl_contract",
    "opsctl.integrations",
)
DEADLINE_USE = re.compile(
    r"(?:\$\{?|environ\W+|environ\.get\W+|getenv\W+)TRAIN_(?:MINUTES_LEFT|DEADLINE)\b|\bopsctl_contract\b|\bopsctl\.integrations\b"
)
"""Code by which a script learns when its task ends."""
MENTION = re.compile(r"\s*(?:echo|printf|:|#|logger)\b|\s*#|\s*:\s")
"""A shell line that names a variable without any use of it."""
DURATION = "exit-duration-in-mins"
USUAL_MARGIN_S = 600.0
"""The margin of the ML Engineering book for 100 hours, if the times of a step and a save are unknown."""


def signal(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """The embedded trainer reads the end of the job itself, so it needs no signal."""
    spec, limit_s = request.spec, request.limit_s
    if limit_s == 0:
        yield error("signal.no_limit", time_limit=spec.time_limit)
        return
    if limit_s <= spec.signal_seconds:
        yield error("signal.at_start", signal_s=spec.signal_seconds, limit_s=limit_s)
        return
    if request.recipe.is_embedded or DURATION in request.recipe.flags or request.recipe.exit_minutes:
        return
    if not spec.signal_seconds and not find_values(spec.extra, "signal"):
        if not _has_deadline(request, facts):
            yield warning("signal.none", minutes=limit_s // 60)
        return
    needed_s = estimate_step(request, facts).stop_s
    if needed_s is not None and spec.signal_seconds < needed_s:
        better_s = int(-(-needed_s // 60) * 60)
        yield warning("signal.late", signal_s=spec.signal_seconds, needed_s=needed_s, better_s=better_s)


def stop_request(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Only a note, because a trainer may read the file name from its environment."""
    if not request.recipe.is_embedded and not _names_any(request, facts, *PLACEHOLDERS):
        yield note("stop-request.unnamed", words=len(request.train.command))


def _has_deadline(request: LaunchRequest, facts: Facts) -> bool:
    """Return whether the command or a script uses the end of the task. A line that only prints a variable does not."""
    command = " ".join(request.train.command)
    if "{{" in command and any(name in command for name in ("minutes_left", "deadline_file")):
        return True
    lines: list[str] = []
    for text in (*request.train.setup.lines, *request.train.command, *facts.scripts.values()):
        lines += strip_comments(text).splitlines()
    parts: list[str] = []
    for line in lines:
        parts += re.split(r"[;&|]+", line)
    return any(DEADLINE_USE.search(part) for part in parts if not MENTION.match(part))


def _names_any(request: LaunchRequest, facts: Facts, *placeholders: str) -> bool:
    texts = [*request.train.command, *request.train.setup.lines, *facts.scripts.values()]
    return any(_names(text, placeholders) for text in texts)


def _names(text: str, placeholders: tuple[str, ...]) -> bool:
    """Return whether the text holds one of the placeholders, or a variable that names the stop request."""
    has_placeholder = "{{" in text and any(placeholder in text for placeholder in placeholders)
    return has_placeholder or any(variable in text for variable in VARIABLES)


def deadline(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """The trainer stops 2 x (step + save) and a margin before the limit, which must leave time to train."""
    limit_s, speed = request.limit_s, estimate_step(request, facts)
    if not limit_s:
        return
    margin_s = request.recipe.embedded.limits.margin_s if request.recipe.embedded else 0.0
    if speed.stop_s is not None and limit_s <= (needed_s := speed.stop_s + margin_s):
        yield error_if(
            request.recipe.is_embedded,
            "deadline.at_start",
            time_limit=request.spec.time_limit,
            step_s=speed.step_s,
            save_s=speed.save_s,
            margin_s=margin_s,
            needed_s=needed_s,
            limit_s=limit_s,
        )
    yield from _duration(request, limit_s, speed.stop_s)


def _duration(request: LaunchRequest, limit_s: int, known_s: float | None) -> Iterator[Problem]:
    """Check a fixed number of minutes, which the trainer counts from its start whatever the job's limit is."""
    minutes = request.recipe.exit_minutes
    if minutes is None:
        return
    left_s = limit_s - 60 * minutes
    if left_s <= (USUAL_MARGIN_S if known_s is None else known_s):
        yield warning(
            "deadline.short",
            option=DURATION,
            minutes=minutes,
            limit_minutes=limit_s // 60,
            left_minutes=left_s // 60,
            needed_minutes=None if known_s is None else known_s / 60,
            usual_minutes=USUAL_MARGIN_S / 60 if known_s is None else None,
        )


def kill_switch(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for switch in facts.switches:
        yield error(
            "kill-switch.armed",
            train=request.train.name,
            switch=switch.switch,
            since=switch.since.isoformat(),
            by=switch.by,
            why=switch.why,
            option="--pause" if switch.switch is Switch.PAUSE else "",
        )
    for path in request.recipe.flags.get("kill-switch-path", ())[:1]:
        if facts.files.get(path):
            yield error("kill-switch.of_command", path=path)
