"""Metrics in the form of Prometheus: definitions, text, a small HTTP endpoint that only this machine can reach.

A new metric needs a line in families.toml and one in collect.py. The endpoint has no authentication.
"""

import ipaddress
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.extras import required
from opsctl.base.ports import Clock
from opsctl.base.tables import read_package_table

FRESH_S = 5.0
"""Collected samples are served again for this time, to limit the queries to Slurm."""
EFFECTIVE_EVERY_S = 600.0
"""How often whole logs are read, in the background."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all its labels."""

    help: str
    labels: Sequence[str] = ()
    is_count: bool = False


FAMILIES = {name: Family(**table) for name, table in read_package_table("metrics/families.toml").items()}


@dataclass(frozen=True, slots=True)
class MetricSample:
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
                    labels = (sample.labels[label].encode(errors="backslashreplace") for label in family.labels)
                    metric.add_metric([label.decode() for label in labels], sample.value)  # of a name of any bytes
            if metric.samples:
                yield metric


def parse_address(text: str) -> tuple[str, int]:
    """Parse `127.0.0.1:9400`, `localhost:9400` or `[::1]:9400`. Raises InputError for any other address."""
    host, _, port = text.rpartition(":")
    host = {"localhost": "127.0.0.1"}.get(host, host.removeprefix("[").removesuffix("]"))
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not (is_loopback and port.isdecimal() and len(port) < 6 and int(port) < 65536):
        raise InputError(
            f"--listen {text!r:.80}: needs a loopback address and a port, such as 127.0.0.1:9400",
            hint="for other machines, use --textfile with node_exporter, or a proxy with authentication",
        )
    return host, int(port)


@dataclass(slots=True)
class Fresh:
    """A prometheus_client registry that collects samples on request, one request at a time, at most every FRESH_S."""

    gather: Callable[[], Sequence[MetricSample]]
    clock: Clock
    effective: Sequence[MetricSample] = ()
    """The last result of the slow metrics."""
    _samples: tuple[MetricSample, ...] = ()
    _at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def collect(self) -> Any:
        with self._lock:
            if self.clock.monotonic() - self._at > FRESH_S:
                self._samples = tuple(self.gather())
                self._at = self.clock.monotonic()
        return Collected((*self._samples, *self.effective)).collect()


def listen(address: tuple[str, int], registry: Fresh) -> tuple[Any, str]:
    """Start a server in its own thread; return the server and its URL. Raises OpsctlError if the port is taken."""
    with required("metrics"):
        from prometheus_client import start_http_server  # noqa: PLC0415 (imports in 0.25 s, needed only here)

    host, port = address
    try:
        server, _ = start_http_server(port, host, registry=registry)
    except OSError as error:
        raise OpsctlError(
            f"{host}:{port}: {error.strerror}", hint="another `opsctl metrics` may be running; choose another port"
        ) from error
    url_host = f"[{host}]" if ":" in host else host
    return server, f"http://{url_host}:{server.server_port}/metrics"
