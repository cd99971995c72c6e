"""Does the command find its own files?"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning


def files(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """sbatch starts a job where it was submitted, opsctl a task where nothing changes until it runs."""
    directory = request.train.setup.directory
    if facts.files.get(directory) is False:
        yield error(f"[setup] directory = {directory} is not there", "correct the path; compute nodes must see it too")
        return
    start = directory or "its run directory"
    for stray in facts.misplaced_paths:
        if stray.here:
            yield error(
                f"command: {stray.path} is in {stray.here}, and the trainer starts in {start}, where it is not",
                f'[setup] directory = "{stray.here}", or its whole path',
            )
        else:
            where = "" if stray.path.startswith("/") else f", seen from {start}"
            yield warning(
                f"command: {stray.path} is not there{where}", "correct the path; compute nodes must see it too"
            )
