"""What the page shows of one train in the overview: headline, progress, figures and alerts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.alerts.open_alerts import OpenAlert
from opsctl.dash.queue_end import find_queue_end
from opsctl.dash.train_figures import Figure, list_figures
from opsctl.dash.train_headline import Headline, Outlook, write_headline
from opsctl.dash.train_reasons import explain
from opsctl.errors import OpsctlError
from opsctl.monitor.status import SHORTAGE, TrainStatus
from opsctl.nodesets import expand
from opsctl.settings.loader import read_toml
from opsctl.state.journal import Event, replay
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import recent_iterations
from opsctl.telemetry.progress.run_progress import CURVE_LINES, Progress, drop_repeated_steps
from opsctl.telemetry.progress.train_settings import read_step_pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCard:
    """One train of the overview."""

    name: str
    state: str
    headline: Headline
    why: str
    """What the headline rests on; empty if it says everything."""
    evidence: str
    """The line of the log that proves the cause of a hold or of an end."""
    advice: str
    """What to do now."""
    command: str
    """The command for it."""
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
    alerts: tuple[OpenAlert, ...]
    notes: tuple[str, ...]
    links: tuple[str, ...]
    marks: tuple[str, ...]
    """Armed switches and waiting requests."""
    nodes: tuple[str, ...]
    """The nodes of the running task."""
    verbs: tuple[str, ...]
    """The actions that make sense now."""

    @property
    def open_key(self) -> str:
        """The key of the worst alert that nobody has acknowledged; empty without any."""
        return next((alert.key for alert in self.alerts if not alert.acknowledged), "")

    @property
    def open_keys(self) -> tuple[str, ...]:
        """The keys of all alerts that nobody has acknowledged."""
        return tuple(alert.key for alert in self.alerts if not alert.acknowledged)


def make_card(
    run: RunDir,
    status: TrainStatus,
    events: Sequence[Event],
    now: datetime,
    excluded: Mapping[str, datetime] | None = None,
) -> TrainCard:
    """Return the card of a train from its status, its journal, the end of its log and the excluded nodes."""
    history, excluded = replay(list(events)), excluded or {}
    nodes = tuple(expand(status.running[0].nodes)) if status.running else ()
    queue_end = find_queue_end(run, status, history, now)
    outlook = Outlook(
        now=now, queue_end=queue_end, excluded={node: excluded[node] for node in nodes if node in excluded}
    )
    headline = write_headline(status, history, outlook)
    lines = drop_repeated_steps(recent_iterations(run.main_log, CURVE_LINES, read_step_pattern(run)))
    words = explain(status, history, excluded)
    dry = queue_end.describe(now) if queue_end and status.state in {"running", "queued"} else ""
    marks = _list_marks(status)
    return TrainCard(
        name=status.train,
        state=status.state,
        headline=headline,
        why=words.why,
        evidence=words.evidence,
        advice=words.advice or ("Queue the missing tasks:" if dry else ""),
        command=words.command or (queue_end.command if queue_end and dry else ""),
        share=_share(status.progress),
        percent=format_progress(_share(status.progress), is_finished=status.state == "finished"),
        step=_describe_step(status.progress),
        size=describe_size(run, len(history.started)),
        weight=count_gpus(run),
        figures=tuple(list_figures(status, history, lines, queue_end, now)),
        alerts=status.alerts,
        notes=tuple(note for note in status.notes if not note.startswith(SHORTAGE)),
        links=status.links,
        marks=tuple([dry, *marks] if dry and dry != headline.text else marks),
        nodes=nodes,
        verbs=tuple(_list_verbs(status)),
    )


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


def count_gpus(run: RunDir) -> int:
    """Return the GPUs of a train; its nodes if it has none."""
    nodes, gpus = read_size(run)
    return nodes * max(1, gpus)


def describe_size(run: RunDir, attempts: int) -> str:
    """Return nodes, GPUs and attempts: `4 nodes × 8 GPUs · 3 attempts`."""
    nodes, gpus = read_size(run)
    gpu_text = f" × {gpus} GPUs" if gpus else ""
    parts = [f"{nodes} node{'s' * (nodes != 1)}{gpu_text}"] if nodes else []
    parts += [f"{attempts} attempt{'s' * (attempts != 1)}"] if attempts else []
    return " · ".join(parts)


def _share(progress: Progress | None) -> float | None:
    return min(1.0, progress.step / progress.last_step) if progress and progress.last_step else None


def _describe_step(progress: Progress | None) -> str:
    if progress is None:
        return "step unknown"
    of = f" of {progress.last_step:,}" if progress.last_step else ""
    return f"step {progress.step:,}{of}"


def _list_marks(status: TrainStatus) -> list[str]:
    marks = [
        f"{armed.switch} switch armed by {armed.by}{f': {armed.why}' if armed.why else ''}" for armed in status.switches
    ]
    return marks + [f"{request.verb} requested by {request.by}" for request in status.requests]


def _list_verbs(status: TrainStatus) -> list[str]:
    verbs = ["ack", "silence"] if any(not alert.acknowledged for alert in status.alerts) else []
    is_paused = any(armed.switch == "pause" for armed in status.switches)
    if status.state == "held" or is_paused:
        verbs.append("release")
    elif status.waiting:
        verbs.append("hold")
    return verbs + (["save"] if status.state in {"running", "queued"} else [])
