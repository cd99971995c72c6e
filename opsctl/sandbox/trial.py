"""A sandbox of one node, brought up and down again: whether a private Slurm starts on this machine."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.errors import SandboxError
from opsctl.ports import Clock, Runner
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec

PATIENCE_S = 10.0
"""Ten times what the slowest machine takes that has been seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A start that worked."""

    seconds: float
    version: tuple[int, int]
    address: str
    confined: bool


def try_start(*, clock: Clock, runner: Runner) -> Trial:
    """Start a private Slurm exactly as `sandbox up` does, and end it. Raises SandboxError with the causes found."""
    begun = clock.monotonic()
    with tempfile.TemporaryDirectory(prefix="opsctl-doctor-", dir="/tmp") as name:
        places = replace(Places.default(), state=Path(name))
        spec = SandboxSpec(name="doctor", nodes=1, fast=True)
        try:
            sandbox = Sandbox.up(spec, clock=clock, runner=runner, places=places, private=True, patience_s=PATIENCE_S)
        except SandboxError as error:
            # The logs go with the directory: their ends are in the message.
            hint = error.hint if error.hint and "logs:" not in error.hint else None
            raise SandboxError(
                error.message, hint=hint or "opsctl sandbox up --nodes 1 fails alike and keeps all logs"
            ) from error
        seconds = clock.monotonic() - begun
        sandbox.down(grace=0.5)
    site = sandbox.record.site
    return Trial(seconds=seconds, version=site.version, address=site.network.address, confined=site.network.confined)
