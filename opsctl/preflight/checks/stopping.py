"""Stopping in time: signals, deadlines and switches."""

import re
from collections.abc import Iterator

from opsctl.checkpoints.trainer_command.shell import strip_comments
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, note, warning
from opsctl.preflight.table_checks import TableCheck
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


def signal(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """The embedded trainer reads the end of the job itself, so it needs no signal."""
    spec, recipe = request.spec, request.recipe
    yield from TableCheck("signal")(request, facts)
    has_signal = spec.signal_seconds or find_values(spec.extra, "signal") or recipe.is_embedded
    has_end = DURATION in recipe.flags or recipe.exit_minutes
    if request.limit_s and not has_signal and not has_end and not _has_deadline(request, facts):
        yield warning("signal.none", minutes=request.limit_s // 60)


def stop_request(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Only a note, because a trainer may read the file name from its environment."""
    if not request.recipe.is_embedded and not _names_stop_request(request, facts):
        yield note("stop-request.unnamed", words=len(request.train.command))


def _has_deadline(request: LaunchRequest, facts: Facts) -> bool:
    """Return whether the command or a script uses the end of the task. A line that only prints a variable does not."""
    command = " ".join(request.train.command)
    if "{{" in command and any(name in command for name in ("minutes_left", "deadline_file")):
        return True
    texts = (*request.train.setup.lines, *request.train.command, *facts.scripts.values())
    parts = re.split(r"[;&|\n]+", strip_comments("\n".join(texts)))
    return any(DEADLINE_USE.search(part) for part in parts if not MENTION.match(part))


def _names_stop_request(request: LaunchRequest, facts: Facts) -> bool:
    """Return whether the command, the setup or a script has a placeholder or a variable that names the stop request."""
    texts = [*request.train.command, *request.train.setup.lines, *facts.scripts.values()]
    filled = "\n".join(text for text in texts if "{{" in text)
    return any(word in filled for word in PLACEHOLDERS) or any(word in "\n".join(texts) for word in VARIABLES)


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
