"""What the page shows of one train in the overview: headline, progress, figures and alerts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.base.errors import OpsctlError
from opsctl.base.nodesets import expand, expand_if_list
from opsctl.dash.alert_groups import AlertGroup, group_alerts
from opsctl.dash.queue_end import find_queue_end
from opsctl.dash.train_figures import Figure, list_figures
from opsctl.dash.train_headline import Headline, Outlook, write_headline
from opsctl.dash.train_reasons import NextStep, ShownRollback, explain
from opsctl.monitor.confirm_proposals import find_proposals
from opsctl.monitor.status import TrainStatus
from opsctl.settings.loader import read_toml
from opsctl.state.events import AttemptStarted, Event
from opsctl.state.journal import replay
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import recent_iterations
from opsctl.telemetry.progress.run_progress import CURVE_LINES, drop_repeated_steps
from opsctl.telemetry.progress.train_settings import read_step_pattern

STOPPED = frozenset({"held", "ended", "queued"})
"""States in which the next task goes on from the last checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCard:
    name: str
    state: str
    headline: Headline
    why: str
    """What the headline rests on; empty if it says everything."""
    evidence: str
    """The line of the log that proves the cause of a hold or of an end."""
    steps: tuple[NextStep, ...]
    """What to do now, in this order."""
    share: float | None
    """Progress from 0 to 1; None if unknown."""
    percent: str
    """The progress, rounded down; below 100 until the train has finished."""
    step: str
    size: str
    """Nodes, GPUs and attempts."""
    weight: int
    """GPUs at stake, or nodes without any."""
    figures: tuple[Figure, ...]
    groups: tuple[AlertGroup, ...]
    """The open alerts by cause."""
    status: TrainStatus
    marks: tuple[str, ...]
    """Armed switches and waiting requests."""
    nodes: tuple[str, ...]
    """The nodes of the running task."""
    last_nodes: tuple[str, ...]
    """The nodes of the last attempt of a train that does not run; empty for any other."""
    verbs: tuple[str, ...]
    """The actions that make sense now, and that this user may do."""
    missing_tasks: int
    """Tasks to queue, for the remaining steps; 1 if the queued tasks suffice."""
    rollback: ShownRollback | None
    """A rollback that runs, was interrupted, or ended within a day."""


def make_card(
    run: RunDir,
    status: TrainStatus,
    events: Sequence[Event],
    now: datetime,
    excluded: Mapping[str, datetime] | None = None,
    *,
    rollback: ShownRollback | None = None,
    is_ours: bool = False,
) -> TrainCard:
    """Return the card of a train from its status, its journal, the end of its log and the excluded nodes.

    `is_ours`: this user owns the train and may therefore roll it back and queue tasks.
    """
    history, excluded = replay(list(events)), excluded or {}
    nodes = tuple(expand(status.running[0].nodes)) if status.running else ()
    queue_end = find_queue_end(run, status, history, now)
    outlook = Outlook(
        now=now, queue_end=queue_end, excluded={node: excluded[node] for node in nodes if node in excluded}
    )
    headline = write_headline(status, history, outlook)
    lines = drop_repeated_steps(recent_iterations(run.main_log, CURVE_LINES, read_step_pattern(run)))
    words = explain(status, history, excluded, str(run.config))
    dry = queue_end.describe(now) if queue_end and status.state in {"running", "queued"} else ""
    marks = _list_marks(status)
    # While a rollback runs or waits to be finished, a release would start a task from a wrong checkpoint.
    is_rolling = rollback is not None and (rollback.is_running or bool(rollback.steps))
    steps = rollback.steps if rollback and is_rolling else words.steps
    if dry and queue_end and not is_rolling:
        steps = (*steps, NextStep(text="Queue the missing tasks.", command=queue_end.command, verb="queue"))
    share, step = describe_progress(status)
    node_count, gpus = read_size(run)
    verbs = _list_verbs(status, rollback, is_ours=is_ours)
    proposals = find_proposals(events, now) if is_ours and not is_rolling else {}
    if proposals:
        verbs.append("confirm")
        steps = (NextStep(text=f"Confirm, if you agree: {', '.join(proposals)}.", verb="confirm"), *steps)
    return TrainCard(
        name=status.train,
        state=status.state,
        headline=headline,
        why=words.why,
        evidence=words.evidence,
        steps=steps,
        share=share,
        percent=format_progress(share, is_finished=status.state == "finished"),
        step=step,
        size=describe_size(node_count, gpus, len(history.attempts)),
        weight=node_count * max(1, gpus),
        figures=tuple(list_figures(status, history, lines, queue_end, now)),
        groups=group_alerts(status.alerts),
        status=status,
        marks=tuple([dry, *marks] if dry and not headline.is_queue_end else marks),
        nodes=nodes,
        last_nodes=_find_last_nodes(status, events) if status.state in STOPPED else (),
        verbs=tuple(verbs),
        missing_tasks=queue_end.missing if queue_end else 1,
        rollback=rollback,
    )


def _find_last_nodes(status: TrainStatus, events: Sequence[Event]) -> tuple[str, ...]:
    last = status.last_attempt.attempt if status.last_attempt else ""
    for event in reversed(events):
        if isinstance(event, AttemptStarted) and event.attempt == last:
            return expand_if_list(event.nodes)
    return ()


def format_progress(share: float | None, *, is_finished: bool) -> str:
    """Return the progress in percent, rounded down; empty if unknown."""
    if share is None:
        return ""
    if is_finished:
        return "100 %" if share >= 1 else f"{math.floor(1000 * share) / 10:.1f} %"
    return f"{min(999, math.floor(1000 * share)) / 10:.1f} %"


def read_size(run: RunDir) -> tuple[int, int]:
    """Return nodes and GPUs a node from train.toml; zeros if unknown."""
    try:
        slurm = read_toml(run.config)["slurm"]
        return int(slurm["nodes"]), int(slurm.get("gpus_per_node", 0))
    except (OpsctlError, KeyError, TypeError, ValueError):
        return 0, 0


def describe_size(nodes: int, gpus: int, attempts: int) -> str:
    """Return nodes, GPUs and attempts: `4 nodes × 8 GPUs · 3 attempts`."""
    gpu_text = f" × {gpus} GPUs" if gpus else ""
    parts = [f"{nodes} node{'s' * (nodes != 1)}{gpu_text}"] if nodes else []
    parts += [f"{attempts} attempt{'s' * (attempts != 1)}"] if attempts else []
    return " · ".join(parts)


def describe_progress(status: TrainStatus) -> tuple[float | None, str]:
    """Return the progress from 0 to 1 and in words. Steps after the last checkpoint are lost while no task runs."""
    progress = status.progress
    if progress is None:
        return None, "step unknown"
    of = f" of {progress.last_step:,}" if progress.last_step else ""
    if progress.epoch is not None or not progress.is_step_known:
        return None, progress.place
    saved = progress.checkpoint_step
    if status.state not in STOPPED or (saved is not None and saved >= progress.step):
        return _share(progress.step, progress.last_step), f"step {progress.step:,}{of}"
    if saved is None:
        return _share(progress.step, progress.last_step), f"step {progress.step:,}{of}, no checkpoint known"
    lost = progress.step - saved
    return _share(saved, progress.last_step), f"step {saved:,}{of} saved, {lost:,} step{'s' * (lost != 1)} lost"


def _share(step: int, last_step: int | None) -> float | None:
    return min(1.0, step / last_step) if last_step else None


def _list_marks(status: TrainStatus) -> list[str]:
    marks = [
        f"{armed.switch} switch armed by {armed.by}{f': {armed.why}' if armed.why else ''}" for armed in status.switches
    ]
    return marks + [f"{request.verb} requested by {request.by}" for request in status.requests]


def _list_verbs(status: TrainStatus, rollback: ShownRollback | None, *, is_ours: bool) -> list[str]:
    if rollback and rollback.is_running:
        return []
    if rollback and rollback.steps:
        return ["rollback"] if is_ours and not rollback.is_undo else []
    verbs = []
    is_paused = any(armed.switch == "pause" for armed in status.switches)
    if status.state == "held" or is_paused:
        verbs.append("release")
    elif status.waiting:
        verbs.append("hold")
    verbs += ["save"] if status.state in {"running", "queued"} else []
    if is_ours and status.state in {"running", "queued", "ended"}:
        verbs.append("queue")
    if is_ours and status.state in {"running", "queued", "held"}:
        has_checkpoint = status.progress is not None and status.progress.checkpoint_step is not None
        is_killed = any(armed.switch == "kill" for armed in status.switches)
        verbs += ["rollback"] if has_checkpoint and not is_killed else []
    return verbs
