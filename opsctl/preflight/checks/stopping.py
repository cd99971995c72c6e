"""Stopping in time: signals, deadlines and switches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from opsctl.base.units import parse_slurm_minutes
from opsctl.checkpoints.trainer_command.shell import strip_comments
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, note, warning
from opsctl.preflight.step_estimate import estimate_step
from opsctl.slurm.batch_options import find_values

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
    spec = request.spec
    minutes = parse_slurm_minutes(spec.time_limit) or 0
    if minutes == 0:
        yield error(f"[slurm] time_limit = {spec.time_limit}: Slurm reads 0 as no limit", "set how long a task may run")
        return
    if minutes * 60 <= spec.signal_seconds:
        yield error(
            f"[slurm] signal_seconds = {spec.signal_seconds}: a task has only {minutes * 60} s, so opsctl would"
            " stop the task at its start",
            "set a shorter signal_seconds, or a longer time_limit",
        )
        return
    if request.recipe.is_embedded or DURATION in request.recipe.flags or request.recipe.exit_minutes:
        return
    if not spec.signal_seconds and not find_values(spec.extra, "signal"):
        if not _has_deadline(request, facts):
            yield warning(
                "[slurm] signal_seconds = 0, and the command has no deadline: Slurm kills the task at its limit,"
                f" and the work since the last save is repeated (up to {minutes} minutes)",
                "set signal_seconds = 600, or use {{ minutes_left }} in the command",
            )
        return
    needed = estimate_step(request, facts).stop_s
    if needed is not None and spec.signal_seconds < needed:
        yield warning(
            f"[slurm] signal_seconds = {spec.signal_seconds}: twice a step and a save are {needed:.0f} s",
            f"set signal_seconds = {_round_up(needed)}",
        )


def _round_up(seconds: float) -> int:
    return int(-(-seconds // 60) * 60)


def stop_request(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Only a note, because a trainer may read the file name from its environment."""
    if not request.recipe.is_embedded and not _names_any(request, facts, *PLACEHOLDERS):
        yield note(
            f"command: none of its {len(request.train.command)} words names the stop request; unless the trainer polls"
            " TRAIN_STOP_REQUEST itself or saves on SIGTERM, switches end the trainer without a save",
            "use {{ stop_request }} in the command, if the trainer reads such a file; [guard] stop_signal, if it"
            " listens to another signal",
        )


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
    limit_s = 60 * (parse_slurm_minutes(request.spec.time_limit) or 0)
    if not limit_s:
        return
    speed = estimate_step(request, facts)
    margin_s = request.recipe.embedded.limits.margin_s if request.recipe.embedded else 0.0
    if speed.stop_s is not None and limit_s <= (value := speed.stop_s + margin_s):
        yield (error if request.recipe.is_embedded else warning)(
            f"[slurm] time_limit = {request.spec.time_limit}: 2 x (step {speed.step_s:.0f} s + save"
            f" {speed.save_s:.0f} s)"
            f" + {margin_s:g} s = {value:.0f} s are kept free of {limit_s} s, so a task would stop at its start",
            "set a longer time_limit",
        )
    yield from _duration(request, limit_s, speed.stop_s)


def _duration(request: LaunchRequest, limit_s: int, known_s: float | None) -> Iterator[Problem]:
    """Check a fixed number of minutes, which the trainer counts from its start whatever the job's limit is."""
    minutes = request.recipe.exit_minutes
    if minutes is None:
        return
    left, needed = limit_s - 60 * minutes, USUAL_MARGIN_S if known_s is None else known_s
    if left <= needed:
        usual = f"; {USUAL_MARGIN_S / 60:.0f} are usual" if known_s is None else f", which take {needed / 60:.0f}"
        yield warning(
            f"command: --{DURATION} {minutes} of a limit of {limit_s // 60} leaves {left // 60} minutes for the last"
            f" step and save{usual}",
            "use {{ minutes_left }}, which opsctl counts from the real end of each task",
        )


def kill_switch(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    for switch in facts.switches:
        why = f": {switch.why}" if switch.why else ""
        flag = " --pause" if switch.switch == "pause" else ""
        yield error(
            f"{request.train.name}: the {switch.switch} switch is armed since {_at(switch.since)} UTC by"
            f" {switch.by}{why}",
            f"opsctl kill-switch disarm {request.train.name}{flag}",
        )
    for path in request.recipe.flags.get("kill-switch-path", ())[:1]:
        if facts.files.get(path):
            yield error(
                f"command: --kill-switch-path {path}: the file exists, so every task would stop at its start",
                f"rm {path}",
            )


def _at(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"
