"""Does the command find its own files?"""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.preflight.facts import Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning


def files(order: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """sbatch starts a job where it was submitted, opsctl a task where nothing changes until it runs."""
    given = order.train.setup.directory
    if facts.files.get(given) is False:
        yield error(f"[setup] directory = {given} is not there", "correct the path; compute nodes must see it too")
        return
    start = given or "its run directory"
    for each in facts.strays:
        if each.here:
            yield error(
                f"command: {each.path} is in {each.here}, and the trainer starts in {start}, where it is not",
                f'[setup] directory = "{each.here}", or its whole path',
            )
        else:
            where = "" if each.path.startswith("/") else f", seen from {start}"
            yield warning(
                f"command: {each.path} is not there{where}", "correct the path; compute nodes must see it too"
            )
