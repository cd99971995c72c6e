"""The definition of every metric: name, help text and labels. A new metric needs a line here and one in collect.py.

Metrics hold times instead of ages, because the age in an old file or scrape would stay the same. `time() - X` is the
age.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from opsctl.base.extras import required


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all its labels."""

    help: str
    labels: tuple[str, ...] = ()
    is_count: bool = False
    """A counter, whose name ends in `_total`."""


TRAIN = ("train",)
FAMILIES: dict[str, Family] = {
    "opsctl_look_timestamp_seconds": Family("Time of this collection"),
    "opsctl_slurm_up": Family("1 if Slurm answers; else states and tasks of trains are missing"),
    "opsctl_cron_last_tick_timestamp_seconds": Family("Time of the last tick of cron"),
    "opsctl_alerts_open": Family("Alerts that are open", ("level",)),
    "opsctl_alert_timestamp_seconds": Family("Start of an open alert", ("alert", "level", "train")),
    "opsctl_nodes": Family("Nodes with a health check, by its last result", ("health",)),
    "opsctl_node_excluded_until_timestamp_seconds": Family("End of an exclusion", ("node", "reason")),
    "opsctl_node_incidents_total": Family("Faults found on a node, by check", ("node", "check"), is_count=True),
    "opsctl_train_up": Family("1 if the files of the train can be read", TRAIN),
    "opsctl_train_state": Family("1 for the current state of the train, 0 for the others", (*TRAIN, "state")),
    "opsctl_train_tasks": Family("Array tasks in the queue", (*TRAIN, "state")),
    "opsctl_train_waiting_tasks": Family("Waiting array tasks, by Slurm's reason", (*TRAIN, "reason")),
    "opsctl_train_attempts_total": Family("Finalized attempts, by outcome", (*TRAIN, "outcome"), is_count=True),
    "opsctl_train_ends_total": Family(
        "Finalized attempts, by diagnosed cause, else by outcome", (*TRAIN, "cause"), is_count=True
    ),
    "opsctl_train_step": Family("Current step", TRAIN),
    "opsctl_train_last_step": Family("Last step of the run", TRAIN),
    "opsctl_train_loss": Family("Loss in the newest line of the log; NaN if the log has NaN", TRAIN),
    "opsctl_train_tokens": Family("Tokens consumed", TRAIN),
    "opsctl_train_step_seconds": Family("Median time of the latest steps", TRAIN),
    "opsctl_train_usual_step_seconds": Family("Median time of a step over the whole run, with the same batch", TRAIN),
    "opsctl_train_tflops": Family("Median TFLOPs per GPU of the latest steps", TRAIN),
    "opsctl_train_usual_tflops": Family("Median TFLOPs per GPU over the whole run", TRAIN),
    "opsctl_train_left_seconds": Family("Time to the last step", (*TRAIN, "bound")),
    "opsctl_train_log_timestamp_seconds": Family("Time of the last write to the log", TRAIN),
    "opsctl_train_heartbeat_timestamp_seconds": Family("Time of the last heartbeat of the trainer", TRAIN),
    "opsctl_train_checkpoint_step": Family("Step of the newest checkpoint", TRAIN),
    "opsctl_train_checkpoint_timestamp_seconds": Family("Time of the last write to the newest checkpoint", TRAIN),
    "opsctl_train_next_checkpoint_step": Family("Step of the next checkpoint", TRAIN),
    "opsctl_train_effective_ratio": Family("Effective time over wall-clock time, of the whole run", (*TRAIN, "queue")),
    "opsctl_train_spent_seconds": Family("Wall-clock time of the whole run, by phase", (*TRAIN, "on")),
    "opsctl_train_lost_seconds": Family(
        "Wall-clock time lost in the whole run, by cause and phase", (*TRAIN, "cause", "on")
    ),
}


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def exposition(samples: Iterable[MetricSample]) -> str:
    """Return the samples in Prometheus' text format, in the order of FAMILIES."""
    with required("metrics"):
        from prometheus_client import generate_latest  # noqa: PLC0415 (imports in 0.25 s, needed only here)

    return generate_latest(Collected(tuple(samples))).decode()


@dataclass(frozen=True, slots=True)
class Collected:
    """Samples in the form of a prometheus_client registry."""

    samples: tuple[MetricSample, ...]

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 (as above)

        for name, family in FAMILIES.items():
            metric_class = CounterMetricFamily if family.is_count else GaugeMetricFamily
            metric = metric_class(name, family.help, labels=family.labels)
            for sample in self.samples:
                if sample.name == name:
                    metric.add_metric([_to_utf8(sample.labels[label]) for label in family.labels], sample.value)
            if metric.samples:
                yield metric


def _to_utf8(label: str) -> str:
    """Return a label as valid UTF-8. A directory's name may be any bytes."""
    return label.encode(errors="backslashreplace").decode()
