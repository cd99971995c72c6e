"""A small HTTP endpoint for Prometheus. Only this machine can reach it: who may read the figures is not asked."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from opsctl.errors import InputError, OpsctlError
from opsctl.extras import required
from opsctl.metrics.families import Collected, MetricSample
from opsctl.ports import Clock

FRESH_S = 5.0
"""So long what was gathered is told again: however many ask, Slurm is asked no more often."""
EFFECTIVE_EVERY_S = 600.0
"""How often whole logs are read: not while somebody waits for an answer."""


def parse_address(text: str) -> tuple[str, int]:
    """`127.0.0.1:9400`, `localhost:9400`, `[::1]:9400`. Raises InputError for what is not of this machine alone."""
    host, _, port = text.rpartition(":")
    host = {"localhost": "127.0.0.1"}.get(host, host.removeprefix("[").removesuffix("]"))
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not (is_loopback and port.isdecimal() and int(port) < 65536):
        raise InputError(
            f"--listen {text!r:.80}: needs a loopback address and a port, such as 127.0.0.1:9400",
            hint="for other machines: --textfile and node_exporter, or a proxy that asks who they are",
        )
    return host, int(port)


@dataclass(slots=True)
class Fresh:
    """What prometheus_client takes for a registry: gathers when it is asked, one at a time, and not too often."""

    gather: Callable[[], Sequence[MetricSample]]
    clock: Clock
    effective: Sequence[MetricSample] = ()
    """What takes long, as it was found last."""
    _samples: tuple[MetricSample, ...] = ()
    _at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def collect(self) -> Any:
        with self._lock:
            if self.clock.monotonic() - self._at > FRESH_S:
                self._samples, self._at = tuple(self.gather()), self.clock.monotonic()
        return Collected((*self._samples, *self.effective)).collect()


def listen(address: tuple[str, int], registry: Fresh) -> tuple[Any, str]:
    """A server in a thread of its own, and its URL. Raises OpsctlError where the port is taken."""
    with required("metrics"):
        from prometheus_client import start_http_server  # noqa: PLC0415 (a quarter of a second, for those who serve)

    host, port = address
    try:
        server, _ = start_http_server(port, host, registry=registry)
    except OSError as error:
        raise OpsctlError(f"{host}:{port}: {error.strerror}", hint="is another `opsctl metrics` there?") from error
    shown = f"[{host}]" if ":" in host else host
    return server, f"http://{shown}:{server.server_port}/metrics"
