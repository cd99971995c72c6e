"""The files that the command names."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.preflight.command_files import describe_missing
from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning


def files(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """opsctl starts a task in its run directory or [setup] directory, not in the directory of the launch."""
    directory = request.train.setup.directory
    if facts.files.get(directory) is False:
        yield error(
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
