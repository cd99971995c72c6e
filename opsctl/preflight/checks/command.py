"""The files that the command names."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.preflight.command_files import describe_missing
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, note, warning

MAX_SHOWN = 12
"""Names of settings in one message."""


def files(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """opsctl starts a task in its run directory or [setup] directory, not in the directory of the launch."""
    directory = request.train.setup.directory
    if facts.files.get(directory) is False:
        problem = warning if directory in facts.unseen else error
        yield problem(
            f"[setup] directory = {directory} does not exist", "correct the path; compute nodes must see it too"
        )
        return
    start = directory or "its run directory"
    for file in facts.misplaced_paths:
        if file.here:
            yield error(
                f"command: {file.path} is in {file.here}, but the trainer starts in {start}",
                f'set [setup] directory = "{file.here}", or use the absolute path',
            )
            continue
        problem = error if file.is_needed else warning
        yield problem(describe_missing(file, directory), "correct the path; compute nodes must see it too")


def unread(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """List the settings and files that opsctl does not read, so that nobody relies on a check of them."""
    for problem in request.recipe.invalid:
        yield note(
            f"command: opsctl cannot read {problem}",
            "correct the file, if the trainer reads it; the checks take no account of it",
        )
    names = request.recipe.unread
    if names:
        shown = ", ".join(names[:MAX_SHOWN]) + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")
        yield note(
            f"{request.recipe.trainer}: opsctl does not read {shown}",
            "check these yourself; the checks and estimates take no account of them",
        )
