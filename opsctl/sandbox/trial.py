"""Test whether a private Slurm starts on this machine, with a sandbox of one node."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.base.errors import SandboxError
from opsctl.base.ports import Clock, Runner
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec

PATIENCE_S = 10.0
"""Ten times the start on the slowest machine measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A successful start."""

    seconds: float
    version: tuple[int, int]
    address: str
    confined: bool


def try_start(*, clock: Clock, runner: Runner) -> Trial:
    """Start a private Slurm as `sandbox up` does, and remove it. Raises SandboxError with the causes."""
    started = clock.monotonic()
    with tempfile.TemporaryDirectory(prefix="opsctl-doctor-", dir="/tmp") as name:  # short, as sockets need  # nosec B108
        places = replace(Places.default(), state=Path(name))
        spec = SandboxSpec(name="doctor", nodes=1, fast=True)
        try:
            sandbox = Sandbox.up(spec, clock=clock, runner=runner, places=places, private=True, patience_s=PATIENCE_S)
        except SandboxError as error:
            # The logs are removed with the directory; the message holds their last lines.
            hint = error.hint if error.hint and "logs:" not in error.hint else None
            raise SandboxError(
                error.message, hint=hint or "opsctl sandbox up --nodes 1 fails in the same way and keeps all logs"
            ) from error
        seconds = clock.monotonic() - started
        sandbox.down(grace=0.5)
    site = sandbox.record.site
    return Trial(seconds=seconds, version=site.version, address=site.network.address, confined=site.network.confined)
