"""A private Slurm: up, open, down."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.errors import InputError, SandboxError
from opsctl.ports import Clock, Runner
from opsctl.sandbox import daemons
from opsctl.sandbox.accounting_daemons import start_accounting
from opsctl.sandbox.daemons import Tools
from opsctl.sandbox.directories import make_directories, new_site, remove_run_directory
from opsctl.sandbox.faults import FaultKind, inject
from opsctl.sandbox.members import EndedProcesses, end_members
from opsctl.sandbox.name_claims import NameTaken, claimed
from opsctl.sandbox.port_range import claimed_ports
from opsctl.sandbox.programs import find_programs, slurm_version
from opsctl.sandbox.record import Places, SandboxRecord, read_record
from opsctl.sandbox.sandbox_status import SandboxStatus, is_up, read_sandbox_status
from opsctl.sandbox.slurm_conf import Auth, SandboxSpec, ports_needed

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A private Slurm that is up, or that left something behind. `was_up`: `up` found it running already."""

    record: SandboxRecord
    places: Places
    clock: Clock
    runner: Runner
    was_up: bool = False

    @classmethod
    def up(
        cls,
        spec: SandboxSpec,
        *,
        clock: Clock,
        runner: Runner,
        places: Places | None = None,
        auth: Auth = Auth.MUNGE,
        private: bool = False,
        patience_s: float = 60,
    ) -> Sandbox:
        """Bring it up: every node is idle when this returns. What an interrupted `up` left is cleaned away first.

        Other users reach only root's, and not with `private`. A daemon that takes longer than `patience_s` fails.
        """
        places = places or Places.default()
        programs = find_programs(os.environ.get("PATH", ""), accounting=spec.accounting)
        with working_on(places, spec.name):
            record = read_record(places.home(spec.name))
            was_up = record is not None and is_up(record)
            if record is None or not was_up:
                clean(places, spec.name, clock, grace=1.0)
                tools = Tools(clock=clock, runner=runner, places=places, programs=programs, patience_s=patience_s)
                record = bring_up(spec, tools, auth, shared=os.geteuid() == 0 and not private)
            elif record.spec != spec:
                raise SandboxError(
                    f"sandbox {spec.name!r} is up already, with {record.spec.describe()}",
                    hint=f"opsctl sandbox down --name {spec.name}, or choose another --name",
                )
        return cls(record=record, places=places, clock=clock, runner=runner, was_up=was_up)

    @classmethod
    def open(cls, name: str, *, clock: Clock, runner: Runner, places: Places | None = None) -> Sandbox:
        """The sandbox of that name, whether or not all of it still runs. Raises InputError if there is none."""
        places = places or Places.default()
        record = read_record(places.home(name))
        if record is None:
            raise InputError(f"there is no sandbox {name!r}", hint=f"opsctl sandbox up --name {name}")
        return cls(record=record, places=places, clock=clock, runner=runner)

    @property
    def name(self) -> str:
        return self.record.spec.name

    @property
    def conf(self) -> Path:
        """The slurm.conf."""
        return self.record.site.conf

    def env(self) -> dict[str, str]:
        """What a command needs in its environment to talk to this Slurm and to no other."""
        return {"SLURM_CONF": str(self.conf)}

    @classmethod
    def end(cls, name: str, *, clock: Clock, places: Places | None = None, grace: float = 1.0) -> EndedProcesses:
        """End whatever runs of the sandbox of that name and remove its files, whether or not there is a record of it.

        Raises SandboxError if a process would not end.
        """
        places = places or Places.default()
        with working_on(places, name):
            return clean(places, name, clock, grace=grace)

    def down(self, *, grace: float = 1.0) -> EndedProcesses:
        """End every process of it, jobs included, and remove its files."""
        return Sandbox.end(self.name, clock=self.clock, places=self.places, grace=grace)

    def fault(self, target: str, action: FaultKind) -> None:
        """Do `action` to a node or to `controller`, and return when it is done. Slurm notices in its own time."""
        with working_on(self.places, self.name):
            inject(self._now() or self.record, target, action, self.clock)

    def status(self) -> SandboxStatus:
        """How it is now; takes up to 12 s when its controller does not answer."""
        return read_sandbox_status(self._now() or self.record, self.clock, self.runner)

    def _now(self) -> SandboxRecord | None:
        # A fault may have started daemons anew since this object was made, by this process or by another.
        return read_record(self.places.home(self.name))


@contextmanager
def working_on(places: Places, name: str) -> Iterator[None]:
    """Let no other command change this sandbox meanwhile."""
    try:
        with claimed(places.run_directory(name).name):
            yield
    except NameTaken as error:
        raise SandboxError(
            f"another command is bringing sandbox {name!r} up or down just now", hint="wait for it"
        ) from error


def clean(places: Places, name: str, clock: Clock, *, grace: float) -> EndedProcesses:
    home, run = places.home(name), places.run_directory(name)
    ended = end_members(run, read_record(home), clock, grace=grace)
    if ended.remaining:
        raise SandboxError(
            f"sandbox {name!r}: {ended.describe_remaining()}",
            hint="a process that hangs in the kernel ends when its disk or network answers; then repeat this command",
        )
    remove_run_directory(run)
    if home.exists():
        shutil.rmtree(home)
    if ended.count:
        log.info("sandbox %s: %d processes ended", name, ended.count)
    return ended


def bring_up(spec: SandboxSpec, tools: Tools, auth: Auth, *, shared: bool) -> SandboxRecord:
    with claimed_ports(ports_needed(spec)) as first_port:
        version = slurm_version(tools.runner, tools.programs["slurmctld"])
        site = new_site(spec, tools.places, version, first_port, auth, shared=shared)
        record = SandboxRecord(spec=spec, site=site, started=tools.clock.now())
        try:
            make_directories(record)
            record.save()
            record = start_all(record, tools)
        except BaseException:
            # The logs stay for whoever asks why; the next `up` or `down` removes them.
            end_members(site.run, record, tools.clock, grace=0)
            remove_run_directory(site.run)
            raise
    record = replace(record, complete=True)
    record.save()
    return record


def start_all(record: SandboxRecord, tools: Tools) -> SandboxRecord:
    record = daemons.start_munged(record, tools)
    if record.spec.accounting:
        record = start_accounting(record, tools)
    record = daemons.start_controller(record, tools)
    return daemons.start_nodes(record, tools)
