"""Metrics in the form of Prometheus, by families.toml. A new metric needs a line there and one in collect.py."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from opsctl.base.extras import required


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all its labels."""

    help: str
    labels: Sequence[str] = ()
    is_count: bool = False


_TABLES = tomllib.loads(files("opsctl.metrics").joinpath("families.toml").read_text())
FAMILIES: dict[str, Family] = {name: Family(**table) for name, table in _TABLES.items()}


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
