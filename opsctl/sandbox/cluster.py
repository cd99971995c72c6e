"""A sandbox: up, open, down."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.errors import InputError, SandboxError
from opsctl.ports import Clock, Runner
from opsctl.sandbox import accounting, config, daemons, programs
from opsctl.sandbox.claims import Taken, claimed
from opsctl.sandbox.config import Auth, Site, Spec
from opsctl.sandbox.portrange import claimed_ports
from opsctl.sandbox.processes import Ended, end_members
from opsctl.sandbox.record import Places, Record, read_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A private Slurm that is up, or that left something behind. `was_up`: `up` found it running."""

    record: Record
    clock: Clock
    runner: Runner
    was_up: bool = False

    @classmethod
    def up(
        cls, spec: Spec, *, places: Places, clock: Clock, runner: Runner, auth: Auth = Auth.MUNGE, path: str = ""
    ) -> Sandbox:
        """Bring it up; every node is idle when this returns. What an interrupted `up` left is cleaned away first."""
        found = programs.find_programs(path or os.environ.get("PATH", ""), accounting=spec.accounting)
        with working_on(places, spec.name):
            old = read_record(places.home(spec.name))
            if old is not None and is_up(old):
                refuse_other(old, spec)
                return cls(record=old, clock=clock, runner=runner, was_up=True)
            clean(places, spec.name, clock)
            record = bring_up(spec, places, clock, runner, found, auth)
            return cls(record=record, clock=clock, runner=runner)

    @classmethod
    def open(cls, name: str, *, places: Places, clock: Clock, runner: Runner) -> Sandbox:
        """The sandbox that `up` left, whether or not all of it still runs."""
        record = read_record(places.home(name))
        if record is None:
            raise InputError(f"there is no sandbox {name!r}", hint=f"opsctl sandbox up --name {name}")
        return cls(record=record, clock=clock, runner=runner)

    @property
    def name(self) -> str:
        return self.record.spec.name

    @property
    def conf(self) -> Path:
        """The slurm.conf."""
        return self.record.site.conf

    def env(self) -> dict[str, str]:
        """What a command needs in its environment to talk to this Slurm."""
        return {"SLURM_CONF": str(self.conf)}
