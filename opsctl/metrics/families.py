"""Every metric: its name, what it is, its labels. Adding one is a line here, and where it is gathered.

Ages are not told but the times that they count from: a file or a scrape that has grown old would tell an old age for
ever. `time() - X` is the age.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from opsctl.extras import required


@dataclass(frozen=True, slots=True)
class Family:
    help: str
    labels: tuple[str, ...] = ()
    is_count: bool = False
    """It only grows, and its name ends in `_total`."""


TRAIN = ("train",)
FAMILIES: dict[str, Family] = {
    "opsctl_look_timestamp_seconds": Family("When all of this was looked at"),
    "opsctl_slurm_up": Family("1 if Slurm answers; if not, there are no states and tasks of trains"),
    "opsctl_cron_last_tick_timestamp_seconds": Family("When cron last gave a sign of life"),
    "opsctl_alerts_open": Family("What people were told and that is not over", ("level",)),
    "opsctl_train_up": Family("1 if the files of the train can be read", TRAIN),
    "opsctl_train_state": Family("1 for the state that the train is in", (*TRAIN, "state")),
    "opsctl_train_tasks": Family("Array tasks in the queue", (*TRAIN, "state")),
    "opsctl_train_waiting_tasks": Family("Array tasks that wait, by Slurm's word for why", (*TRAIN, "reason")),
    "opsctl_train_attempts_total": Family("Tasks that have ended, by how", (*TRAIN, "outcome"), is_count=True),
    "opsctl_train_step": Family("The step that the run is at", TRAIN),
    "opsctl_train_last_step": Family("The step at which the run ends", TRAIN),
    "opsctl_train_loss": Family("Of the newest line of the log; NaN if it says so", TRAIN),
    "opsctl_train_tokens": Family("Tokens that the run has consumed", TRAIN),
    "opsctl_train_step_seconds": Family("Time of a step, the median of the latest", TRAIN),
    "opsctl_train_usual_step_seconds": Family("The same over the whole run, with the same batch", TRAIN),
    "opsctl_train_tflops": Family("TFLOPs of each GPU, the median of the latest", TRAIN),
    "opsctl_train_usual_tflops": Family("The same over the whole run", TRAIN),
    "opsctl_train_left_seconds": Family("Time to the last step", (*TRAIN, "bound")),
    "opsctl_train_log_timestamp_seconds": Family("When the log was last written to", TRAIN),
    "opsctl_train_heartbeat_timestamp_seconds": Family("When the trainer last gave a sign of life", TRAIN),
    "opsctl_train_checkpoint_step": Family("The step of the newest checkpoint", TRAIN),
    "opsctl_train_checkpoint_timestamp_seconds": Family("When the newest checkpoint was last written to", TRAIN),
    "opsctl_train_next_checkpoint_step": Family("The step of the next checkpoint", TRAIN),
    "opsctl_train_effective_ratio": Family("Effective time over wall-clock, of the whole run", (*TRAIN, "queue")),
    "opsctl_train_spent_seconds": Family("Where the wall-clock of the whole run went, by cause", (*TRAIN, "on")),
}


@dataclass(frozen=True, slots=True)
class MetricSample:
    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def exposition(samples: Iterable[MetricSample]) -> str:
    """As Prometheus reads it, families in the order above; one without samples is left out."""
    with required("metrics"):
        from prometheus_client import generate_latest  # noqa: PLC0415 (a quarter of a second, for those who want it)

    return generate_latest(Collected(tuple(samples))).decode()


@dataclass(frozen=True, slots=True)
class Collected:
    """What prometheus_client takes for a registry."""

    samples: tuple[MetricSample, ...]

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 (as above)

        for name, family in FAMILIES.items():
            make = CounterMetricFamily if family.is_count else GaugeMetricFamily
            made = make(name, family.help, labels=family.labels)
            for sample in self.samples:
                if sample.name == name:
                    made.add_metric([_text(sample.labels[label]) for label in family.labels], sample.value)
            if made.samples:
                yield made


def _text(label: str) -> str:
    """A directory's name may be no text at all."""
    return label.encode(errors="backslashreplace").decode()
