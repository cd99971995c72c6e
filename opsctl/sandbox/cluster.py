"""A private Slurm: start, find and remove a sandbox."""

import contextlib
import logging
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from opsctl.base.errors import InputError, SandboxError
from opsctl.base.ports import Clock, Runner
from opsctl.host.processes import memory_of
from opsctl.sandbox import daemons
from opsctl.sandbox.daemons import Tools
from opsctl.sandbox.faults import FaultKind, inject
from opsctl.sandbox.members import EndedProcesses, end_members, find_members
from opsctl.sandbox.programs import find_programs, read_slurm_version
from opsctl.sandbox.record import (
    CONTROLLER,
    Places,
    SandboxRecord,
    make_directories,
    make_site,
    read_record,
    remove_run_directory,
)
from opsctl.sandbox.slurm_conf import Auth, SandboxSite, SandboxSpec, count_ports

FIRST_PORT, LAST_PORT = 20000, 32000
"""Below the ports that kernels choose (32768 and up), above the ports of common services."""
BLOCK_PORTS = 32
"""Sandboxes hold ports in blocks of this size."""


class NameTaken(Exception):
    """Another process holds the name."""


@contextlib.contextmanager
def hold_names(*names: str) -> Iterator[None]:
    """Hold all of `names` against every process of every user. Raises NameTaken.

    A name is an abstract socket, which is valid in this network namespace, as TCP ports are. The kernel releases the
    name when its holder ends.
    """
    with contextlib.ExitStack() as stack:
        for name in names:
            unix_socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            try:
                unix_socket.bind(f"\0opsctl-sandbox-{name}")
            except OSError as error:
                raise NameTaken(name) from error
        yield


@contextlib.contextmanager
def hold_ports(count: int) -> Iterator[int]:
    """Yield the first port of a range of `count` free ports, held against other sandboxes. Raises SandboxError."""
    blocks = -(-count // BLOCK_PORTS)
    starts = list(range(FIRST_PORT, LAST_PORT - blocks * BLOCK_PORTS, BLOCK_PORTS))
    random.shuffle(starts)
    with contextlib.ExitStack() as stack:
        start = next((start for start in starts if hold_blocks(stack, start, blocks)), None)
        if start is None:
            raise SandboxError(f"no {count} free ports in a row between {FIRST_PORT} and {LAST_PORT}")
        yield start


def hold_blocks(stack: contextlib.ExitStack, start: int, blocks: int) -> bool:
    """Hold these blocks until `stack` closes. Return False if another process holds a block or uses a port."""
    ports = range(start, start + blocks * BLOCK_PORTS)
    with contextlib.ExitStack() as held_blocks:
        try:
            held_blocks.enter_context(hold_names(*(f"port-{port}" for port in ports[::BLOCK_PORTS])))
        except NameTaken:
            return False
        if not all(is_free(port) for port in ports):
            return False
        stack.enter_context(held_blocks.pop_all())
    return True


def is_free(port: int) -> bool:
    """Return whether no process listens on the port, on any address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without SO_REUSEADDR a port that was in use a minute ago would look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


log = logging.getLogger(__name__)
TRIAL_START_S = 10.0
"""For the trial of `opsctl doctor`: ten times the start on the slowest machine measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """The present status of a sandbox."""

    name: str
    is_up: bool
    nodes: Mapping[str, str]
    """The state of every node; empty if the controller does not answer."""
    dead: tuple[str, ...]
    """The daemons that have ended."""
    processes: int
    memory_bytes: int
    uptime_s: float
    conf: str


def is_up(record: SandboxRecord) -> bool:
    """Return whether the sandbox started completely and its controller runs. Nodes may be down."""
    controller = record.daemon(CONTROLLER)
    return record.complete and controller is not None and controller.process.is_alive


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A private Slurm that is up, or whose files and processes remain."""

    record: SandboxRecord
    places: Places
    clock: Clock
    runner: Runner
    was_up: bool = False
    """Whether `up` found the sandbox running."""

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
    ) -> Self:
        """Start a sandbox and wait until every node is idle. First remove what an interrupted `up` left behind.

        Other users can reach a sandbox of root unless `private` is set. Raises SandboxError, also for a daemon that
        takes longer than `patience_s`.
        """
        places = places or Places.default()
        programs = find_programs(os.environ.get("PATH", ""), accounting=spec.accounting)
        with hold_sandbox(places, spec.name):
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
    def open(cls, name: str, *, clock: Clock, runner: Runner, places: Places | None = None) -> Self:
        """Return the sandbox of this name, even if some daemons have ended. Raises InputError without a record."""
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
        """The path of slurm.conf."""
        return self.record.site.conf

    def env(self) -> dict[str, str]:
        """Return the environment variables with which commands use this Slurm and no other."""
        return {"SLURM_CONF": str(self.conf)}

    @classmethod
    def end(cls, name: str, *, clock: Clock, places: Places | None = None, grace: float = 1.0) -> EndedProcesses:
        """End all processes of the sandbox of this name and remove its files, with or without a record.

        Raises SandboxError if a process does not end.
        """
        places = places or Places.default()
        with hold_sandbox(places, name):
            return clean(places, name, clock, grace=grace)

    def down(self, *, grace: float = 1.0) -> EndedProcesses:
        """End every process of the sandbox, jobs included, and remove its files. Raises SandboxError."""
        return Sandbox.end(self.name, clock=self.clock, places=self.places, grace=grace)

    def fault(self, target: str, action: FaultKind) -> None:
        """Inject a fault into a node or into `controller`. Slurm reacts later, by its own timers."""
        with hold_sandbox(self.places, self.name):
            inject(self._read_record() or self.record, target, action, self.clock)

    def status(self) -> SandboxStatus:
        """Return the present status. Takes up to 12 s if the controller does not answer."""
        record = self._read_record() or self.record
        has_controller = is_up(record)
        processes = find_members(record.site.run, record)
        return SandboxStatus(
            name=record.spec.name,
            is_up=has_controller,
            nodes=daemons.read_node_states(record, self.runner) if has_controller else {},
            dead=tuple(daemon.name for daemon in record.daemons if not daemon.process.is_alive),
            processes=len(processes),
            memory_bytes=memory_of(processes),
            uptime_s=(self.clock.now() - record.started).total_seconds(),
            conf=str(record.site.conf),
        )

    def _read_record(self) -> SandboxRecord | None:
        # A fault, injected by this process or another, may have restarted daemons since `self.record` was read.
        return read_record(self.places.home(self.name))


@contextmanager
def hold_sandbox(places: Places, name: str) -> Iterator[None]:
    """Keep other commands from changing this sandbox. Raises SandboxError if another command is changing it."""
    try:
        with hold_names(places.run_directory(name).name):
            yield
    except NameTaken as error:
        raise SandboxError(
            f"another command is bringing sandbox {name!r} up or down just now", hint="repeat this command later"
        ) from error


def clean(places: Places, name: str, clock: Clock, *, grace: float) -> EndedProcesses:
    """End the processes of a sandbox and remove its files. Raises SandboxError if a process does not end."""
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
    """Start a new sandbox and record it. Raises SandboxError; the logs remain, the processes do not."""
    with hold_ports(count_ports(spec)) as first_port:
        version = read_slurm_version(tools.runner, tools.programs["slurmctld"])
        site = make_site(spec, tools.places, version, first_port, auth, shared=shared)
        record = SandboxRecord(spec=spec, site=site, started=tools.clock.now())
        try:
            make_directories(record)
            record.save()
            record = daemons.start_munged(record, tools)
            if spec.accounting:
                record = daemons.start_accounting(record, tools)
            record = daemons.start_nodes(daemons.start_controller(record, tools), tools)
        except BaseException:
            # The logs show the cause. The next `up` or `down` removes them.
            end_members(site.run, record, tools.clock, grace=0)
            remove_run_directory(site.run)
            raise
    record = replace(record, complete=True)
    record.save()
    return record


def try_start(*, clock: Clock, runner: Runner) -> tuple[float, SandboxSite]:
    """Start a private Slurm as `sandbox up` does, and remove it; return the seconds of the start, and its site.

    Raises SandboxError with the causes.
    """
    started = clock.monotonic()
    with tempfile.TemporaryDirectory(prefix="opsctl-doctor-", dir="/tmp") as name:  # short, as sockets need  # nosec B108
        places = replace(Places.default(), state=Path(name))
        spec = SandboxSpec(name="doctor", nodes=1, fast=True)
        try:
            sandbox = Sandbox.up(
                spec, clock=clock, runner=runner, places=places, private=True, patience_s=TRIAL_START_S
            )
        except SandboxError as error:
            # The logs are removed with the directory; the message holds their last lines.
            hint = None if error.logs else error.hint
            raise SandboxError(
                error.message, hint=hint or "opsctl sandbox up --nodes 1 fails in the same way and keeps all logs"
            ) from error
        seconds = clock.monotonic() - started
        sandbox.down(grace=0.5)
    return seconds, sandbox.record.site
