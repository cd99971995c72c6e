"""Whether earlier attempts or the nodes need a closer look before the body runs. Imports little: all nodes wait."""

from __future__ import annotations

import re

from opsctl.base.errors import ConfigError
from opsctl.base.model import Job
from opsctl.settings.loader import GuardSettings, read_toml
from opsctl.state.journal import TrainHistory
from opsctl.state.run_dir import Attempt, RunDir

ATTEMPT = re.compile(r"(\d+)(?:_(\d+))?\.(\d+)", re.ASCII)


def list_unfinalized(run: RunDir, history: TrainHistory) -> list[Attempt]:
    """Return the attempts that are not finalized, in the order of the journal; unjournalled attempts come last."""
    journalled = [name for name in history.started if name not in history.finalized]
    on_disk = sorted(
        attempt.name for attempt in run.attempts() if ATTEMPT.fullmatch(attempt.name) and not attempt.end.exists()
    )
    return [run.attempt(name) for name in dict.fromkeys([*journalled, *on_disk])]


def is_row_of(job: Job, attempt: Attempt) -> bool:
    """Return whether a row of the queue belongs to the attempt's job, before or after a requeue."""
    return job.array == attempt.array and (
        job.id == attempt.array if attempt.task is None else attempt.task in job.tasks
    )


def wants_node_check(run: RunDir, rules: GuardSettings) -> bool:
    """Whether the nodes of an attempt are checked before its body; yes if train.toml cannot be read.

    Without `node_check`, the nodes of trains with GPUs are checked.
    """
    if rules.node_check is not None:
        return rules.node_check
    try:
        table = read_toml(run.config).get("slurm", {})
    except ConfigError:
        return True
    return not isinstance(table, dict) or table.get("gpus_per_node", 0) != 0
