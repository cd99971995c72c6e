"""The composition root: builds Slurm, alerting, cron and nodes from the settings. No other module does."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zoneinfo import ZoneInfo

from opsctl.base.errors import InputError, MissingPackage, NotTrusted, OpsctlError
from opsctl.base.nodesets import hostname
from opsctl.base.ports import Clock, Runner, Shell
from opsctl.host.system import SystemClock, SystemRunner, state_home
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.loader import SiteSettings, find_site, load_site
from opsctl.slurm.commands import Slurm
from opsctl.state import debug_log, run_dir
from opsctl.state import trust as trusting
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir

if TYPE_CHECKING:
    from opsctl.alerts.dispatch import Alerting
    from opsctl.alerts.ledger_files import LedgerFiles
    from opsctl.base.model import Job
    from opsctl.cron.cron_context import CronContext
    from opsctl.cron.drivers.slurm_job import SlurmDriver
    from opsctl.launch.shared_queue import SharedQueue
    from opsctl.nodes.exclusions import Exclusions
    from opsctl.nodes.history import NodeHistory
    from opsctl.nodes.remote.fanout import Fanout
    from opsctl.slurm.steps import ShortJob

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class App:
    """The objects that commands use. An object is built on first use, so that some commands work without Slurm."""

    site: SiteSettings
    site_path: Path | None
    """The file from which `site` was read; None for the built-in settings."""
    clock: Clock
    runner: Runner
    """Runs programs in this process's environment."""
    trust: bool = False
    """Whether the user has asked to obey settings files that others could have written."""
    is_viewer: bool = False
    """Whether the command shows trains again and again, and shares one list of the queue with others that do."""

    def site_now(self) -> datetime:
        """Return the time in the time zone of the site; in UTC without one."""
        return self.clock.now().astimezone(ZoneInfo(self.site.alerts.time_zone or "UTC"))

    def as_viewer(self) -> App:
        return replace(self, is_viewer=True)

    def with_clock(self, clock: Clock) -> App:
        return replace(self, clock=clock)

    @cached_property
    def engine_env(self) -> dict[str, str]:
        """The variables with which Slurm's commands find the configured Slurm."""
        if os.environ.get("SLURM_CONF"):
            return {}
        if self.site.engine == "sandbox":
            from opsctl.sandbox.cluster import Sandbox  # noqa: PLC0415 (slow import: psutil)

            try:
                return Sandbox.open(self.site.sandbox, clock=self.clock, runner=self.runner).env()
            except InputError as error:
                if self.site_path:
                    raise
                missing = (
                    "neither SLURM_CONF nor /etc/slurm/slurm.conf" if shutil.which("sinfo") else "no sinfo on PATH"
                )
                raise InputError(
                    f"no Slurm is configured here: {missing}, and no sandbox is up",
                    hint=f"on your cluster: load its Slurm or set SLURM_CONF; to try opsctl: {error.hint}",
                ) from error
        return {"SLURM_CONF": self.site.slurm.conf} if self.site.slurm.conf else {}

    @property
    def engine_runner(self) -> Runner:
        """Runs programs in the environment of the configured Slurm."""
        return SystemRunner(env=self.engine_env)

    @cached_property
    def slurm(self) -> Slurm:
        from opsctl.slurm.pyslurm_reader import choose  # noqa: PLC0415 (slow import: the parsers)

        return replace(choose(self.engine_runner)[0], timeout_s=self.site.slurm.timeout_seconds)

    def jobs(self) -> list[Job]:
        """Return the queue; for a viewer, as it was a moment ago. Raises Unreachable."""
        return self.shared_queue.read() if self.is_viewer else self.slurm.jobs()

    @cached_property
    def shared_queue(self) -> SharedQueue:
        """The list of the queue that all viewers of this user share on this host."""
        from opsctl.launch.shared_queue import SharedQueue  # noqa: PLC0415 (viewers only)

        name = f"{hostname()} {({**os.environ, **self.engine_env}).get('SLURM_CONF', '')}"
        place = state_home() / "queue" / hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
        return SharedQueue(self.slurm, self.clock, place, self.site.slurm.queue_seconds)

    @property
    def program(self) -> list[str]:
        """The words that start this opsctl with this site."""
        site = ["--site", str(self.site_path.absolute())] if self.site_path else []
        return [sys.executable, "-P", "-m", "opsctl", *site]

    @property
    def root(self) -> Path:
        """The directory of all trains."""
        return self.site.root_path

    @property
    def _root_digest(self) -> str:
        return hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]

    @cached_property
    def site_problem(self) -> str:
        """Why the site directory below the root is not used; empty if it is."""
        return SiteDir.of(self.root).find_problem(self.site.site_owner)

    @property
    def site_dir(self) -> SiteDir:
        """The site directory; while another user owns the one below the root, one in the user's state directory."""
        return SiteDir(state_home() / "site" / self._root_digest) if self.site_problem else SiteDir.of(self.root)

    @property
    def alerting(self) -> Alerting:
        """The site's alerts. While the root is not writable, their state is kept in the user's own state directory."""
        from opsctl.alerts.dispatch import Alerting  # noqa: PLC0415 (slow import: templates)

        return Alerting(
            rules=self.site.alerts,
            site=self.site_dir,
            spare=self._spare_site,
            site_problem=self.site_problem,
            clock=self.clock,
            runner=self.runner,
        )

    @property
    def alert_ledger(self) -> LedgerFiles:
        """The ledger of `alerting`, to be read."""
        from opsctl.alerts.ledger_files import LedgerFiles  # noqa: PLC0415 (most commands show no alerts)

        return LedgerFiles(self.site_dir, self._spare_site)

    @property
    def _spare_site(self) -> SiteDir:
        return SiteDir(state_home() / "alerts" / self._root_digest)

    @cached_property
    def cron(self) -> CronContext:
        """The periodic jobs."""
        from opsctl.cron.cron_context import CronContext  # noqa: PLC0415 (as above)
        from opsctl.cron.cron_dir import CronDir  # noqa: PLC0415 (slow import: APScheduler)

        env = dict(os.environ)
        with contextlib.suppress(OpsctlError):  # without the sandbox, each entry reports its own error
            env |= self.engine_env
        if self.site_path:
            env["OPSCTL_SITE"] = str(self.site_path.absolute())
        return CronContext(
            place=CronDir(self.site_dir),
            settings=self.site.cron,
            clock=self.clock,
            env=env,
            trust_parents=self.site.trust_parents,
        )

    @cached_property
    def slurm_cron(self) -> SlurmDriver:
        """The cron driver that runs as a Slurm job and submits its successor."""
        from opsctl.cron.drivers.slurm_job import SlurmDriver  # noqa: PLC0415 (as above)

        return SlurmDriver(
            cron=self.cron,
            slurm=self.slurm,
            runner=self.engine_runner,
            defaults=self.site.slurm,
            python=sys.executable,
            site_file=self.site_path and self.site_path.absolute(),
        )

    @property
    def history(self) -> NodeHistory:
        """The incidents of every node."""
        from opsctl.nodes.history import NodeHistory  # noqa: PLC0415 (slow import: node commands only)

        return NodeHistory(site=self.site_dir, clock=self.clock)

    @property
    def exclusions(self) -> Exclusions:
        """The nodes that are excluded from the site's trains."""
        from opsctl.nodes.exclusions import Exclusions  # noqa: PLC0415 (as above)

        return Exclusions(site=self.site_dir, clock=self.clock)

    def fanout(self, *, jobs: Mapping[str, str], idle: Collection[str]) -> Fanout:
        """Return the remote shells, in the site's order.

        `jobs` maps a node to a running job of the user; `idle` are the nodes on which a short job may run.
        """
        from opsctl.nodes.remote.fanout import Fanout, Local  # noqa: PLC0415 (as above)
        from opsctl.slurm.steps import InJob  # noqa: PLC0415 (as above)

        remote = self.site.remote
        own_names = {os.environ.get("SLURMD_NODENAME") or hostname()}
        builders: dict[str, Callable[[], Shell]] = {
            "local": lambda: Local(runner=self.runner, names=own_names),
            "srun": lambda: InJob(runner=self.engine_runner, jobs=jobs),
            "job": lambda: self.short_job(idle),
            "ssh": self._ssh,
        }
        return Fanout(shells=[builders[way]() for way in remote.ways], parallel=remote.parallel)

    def short_job(self, idle: Collection[str], *, minutes: int = 0) -> ShortJob:
        """Return the shell that runs commands in jobs on idle nodes, of at least so many minutes."""
        from opsctl.slurm.steps import ShortJob  # noqa: PLC0415 (as above)

        remote = self.site.remote
        return ShortJob(
            runner=self.engine_runner,
            idle=idle,
            partition=remote.job_partition,
            account=self.site.slurm.account,
            minutes=max(minutes, remote.job_minutes),
            wait_s=remote.connect_seconds,
        )

    def _ssh(self) -> Shell:
        from opsctl.base.extras import required  # noqa: PLC0415 (as above)
        from opsctl.nodes.remote.fanout import Absent  # noqa: PLC0415 (as above)

        try:
            with required("ssh"):
                from opsctl.nodes.remote.ssh import Ssh  # noqa: PLC0415 (slow import: paramiko)
        except MissingPackage as error:  # the other shells may reach the node
            return Absent(name="ssh", problem=f"{error.message}: {error.hint}")
        return Ssh.from_settings(self.site.remote, self.clock)

    def find(self, train: str) -> RunDir:
        """Return the run directory of a train, by name or path. Raises InputError."""
        return run_dir.find(self.root, train)

    @cached_property
    def _journals(self) -> dict[Path, Journal]:
        return {}

    def journal(self, run: RunDir) -> Journal:
        """Return the journal of a train, the same object each time: it remembers what it has read."""
        return self._journals.setdefault(run.path, Journal(run, self.clock))

    def arrays(self, run: RunDir) -> TrainArrays:
        """Return the job arrays of a train."""
        return TrainArrays(run=run, journal=self.journal(run), slurm=self.slurm)

    def check_trusted(self, run: RunDir) -> None:
        """Check that only the owner can write to the run directory. Raises RunDirError."""
        root = self.root if self.site.trust_parents else None
        run_dir.check_trusted((run.config, run.body, run.wrapper, run.journal), root=root)

    def check_settings(self, file: Path) -> None:
        """Check that no other user could have written the TRAIN.toml `file`, unless trusted. Raises NotTrusted."""
        if not self.trust:
            trusting.check_settings(file, root=self.root if self.site.trust_parents else None)


def build(site_file: Path | None = None, *, trust: bool = False) -> App:
    """Build the App from `site_file`, or from the site file in its usual places. Raises ConfigError.

    Raises NotTrusted if others could have written the site file, unless `trust`, which is remembered.
    """
    path = site_file or find_site()
    if path:
        try:
            trusting.check_settings(path)
        except NotTrusted:
            if not trust:
                raise
            trusting.trust_settings(path)
    return build_unchecked(path, trust=trust)


def build_unchecked(path: Path | None, *, trust: bool = False) -> App:
    """Build the App without asking who could have written the site file. Raises ConfigError."""
    site = load_site(path) if path else built_in_site()
    return App(site=site, site_path=path, clock=SystemClock(), runner=SystemRunner(), trust=trust)


def open_debug_log(app: App, command: str = "") -> None:
    """Write the log records of this process, and its command line, to the debug log of the site."""
    debug_log.attach(app.site_dir, app.clock)
    log.debug("opsctl %s", command or shlex.join(sys.argv[1:]))


def built_in_site() -> SiteSettings:
    """Return the settings without a site file: the machine's Slurm if present, else the sandbox; trains in the user's
    state directory."""
    has_slurm = bool(os.environ.get("SLURM_CONF")) or Path("/etc/slurm/slurm.conf").exists()
    engine: Literal["slurm", "sandbox"] = "slurm" if has_slurm and shutil.which("sinfo") else "sandbox"
    root = os.environ.get("OPSCTL_ROOT") or str(state_home() / "trains")
    try:
        return SiteSettings(root=root, engine=engine)
    except ValueError as error:
        raise OpsctlError(f"OPSCTL_ROOT: {error}") from error
