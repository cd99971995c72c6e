"""The composition root: from settings to real things. Nothing else builds them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from opsctl.errors import MissingPackage, OpsctlError
from opsctl.host.system import SystemClock, SystemRunner, hostname
from opsctl.launch.train_arrays import TrainArrays
from opsctl.ports import Clock, Runner, Scheduler, Shell
from opsctl.settings.loader import SiteSettings, find_site, load_site, state_home
from opsctl.state import run_dir
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir

if TYPE_CHECKING:
    from opsctl.alerts.dispatch import Alerting
    from opsctl.cron.context import CronContext
    from opsctl.cron.drivers.slurm_job import SlurmDriver
    from opsctl.guard.node_care import NodeCare
    from opsctl.nodes.exclusions import Exclusions
    from opsctl.nodes.history import NodeHistory
    from opsctl.nodes.remote.fanout import Fanout
    from opsctl.preflight.gather_facts import LaunchPlace


@dataclass(frozen=True)
class App:
    """What the verbs need. The scheduler is built when it is first asked for, so that verbs that ask Slurm nothing work
    without one."""

    site: SiteSettings
    site_path: Path | None
    """Where `site` was read, or None for the built-in one."""
    clock: Clock
    runner: Runner
    """Runs programs in this process's own environment."""

    @cached_property
    def engine_env(self) -> dict[str, str]:
        """What Slurm's commands need in their environment to find the Slurm that is meant."""
        if os.environ.get("SLURM_CONF"):
            return {}
        if self.site.engine == "sandbox":
            from opsctl.sandbox.cluster import Sandbox  # noqa: PLC0415 (psutil and more, for those who use it)

            return Sandbox.open(self.site.sandbox, clock=self.clock, runner=self.runner).env()
        return {"SLURM_CONF": self.site.slurm.conf} if self.site.slurm.conf else {}

    @property
    def engine_runner(self) -> Runner:
        """Runs Slurm's commands for the Slurm that is meant."""
        return SystemRunner(env=self.engine_env)

    @cached_property
    def scheduler(self) -> Scheduler:
        from opsctl.scheduler.pyslurm_reader import choose  # noqa: PLC0415 (the parsers, for those who ask Slurm)

        return choose(self.engine_runner)[0]

    @property
    def root(self) -> Path:
        return self.site.root_path

    @property
    def alerting(self) -> Alerting:
        """The site's alerts. While the root cannot be written they are carried on in this user's own directory."""
        from opsctl.alerts.dispatch import Alerting  # noqa: PLC0415 (templates and more, for those who alert)

        spare = state_home() / "alerts" / hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Alerting(
            rules=self.site.alerts, site=SiteDir.of(self.root), spare=SiteDir(spare), clock=self.clock,
            runner=self.runner,
        )  # fmt: skip

    @cached_property
    def cron(self) -> CronContext:
        """What is done while nobody looks."""
        from opsctl.cron.context import CronContext  # noqa: PLC0415 (as above)
        from opsctl.cron.cron_dir import CronDir  # noqa: PLC0415 (APScheduler and all, for those who tick)

        env = dict(os.environ)
        with contextlib.suppress(OpsctlError):  # a sandbox that is gone is for the entries to find out
            env |= self.engine_env
        if self.site_path:
            env["OPSCTL_SITE"] = str(self.site_path.absolute())
        return CronContext(
            place=CronDir(SiteDir.of(self.root)), settings=self.site.cron, clock=self.clock, env=env,
            trust_parents=self.site.trust_parents, report=_say,
        )  # fmt: skip

    @cached_property
    def slurm_cron(self) -> SlurmDriver:
        """Cron's driver that is a job which submits itself."""
        from opsctl.cron.drivers.slurm_job import SlurmDriver  # noqa: PLC0415 (as above)

        return SlurmDriver(
            cron=self.cron, scheduler=self.scheduler, runner=self.engine_runner, defaults=self.site.slurm,
            python=sys.executable, site_file=self.site_path and self.site_path.absolute(),
        )  # fmt: skip

    @property
    def history(self) -> NodeHistory:
        """What is remembered of nodes."""
        from opsctl.nodes.history import NodeHistory  # noqa: PLC0415 (for those who look at nodes)

        return NodeHistory(site=SiteDir.of(self.root), clock=self.clock)

    @property
    def exclusions(self) -> Exclusions:
        """The nodes that our trains are kept from."""
        from opsctl.nodes.exclusions import Exclusions  # noqa: PLC0415 (as above)

        return Exclusions(site=SiteDir.of(self.root), clock=self.clock)

    @property
    def node_care(self) -> NodeCare:
        """What settlements may do about nodes."""
        from opsctl.guard.node_care import NodeCare  # noqa: PLC0415 (for those who finalize)

        return NodeCare(
            site=self.site.health, history=self.history, exclusions=self.exclusions, clock=self.clock,
            reach=lambda jobs, idle: self.fanout(jobs=jobs, idle=idle),
        )  # fmt: skip

    def fanout(self, *, jobs: Mapping[str, str], idle: Collection[str]) -> Fanout:
        """The ways to nodes: `jobs` has for a node a running job of ours, `idle` those that a short job may have."""
        from opsctl.nodes.remote.fanout import Fanout  # noqa: PLC0415 (as above)
        from opsctl.nodes.remote.local import Local  # noqa: PLC0415 (as above)
        from opsctl.nodes.remote.srun import InJob, ShortJob  # noqa: PLC0415 (as above)

        remote, slurm = self.site.remote, self.site.slurm
        here = {os.environ.get("SLURMD_NODENAME") or hostname()}
        makers: dict[str, Callable[[], Shell]] = {
            "local": lambda: Local(runner=self.runner, names=here),
            "srun": lambda: InJob(runner=self.engine_runner, jobs=jobs),
            "job": lambda: ShortJob(
                runner=self.engine_runner, idle=idle, partition=remote.job_partition, account=slurm.account,
                minutes=remote.job_minutes, wait=remote.connect_seconds,
            ),
            "ssh": self._ssh,
        }  # fmt: skip
        return Fanout(shells=[makers[way]() for way in remote.ways], parallel=remote.parallel)

    def _ssh(self) -> Shell:
        from opsctl.extras import required  # noqa: PLC0415 (as above)
        from opsctl.nodes.remote.absent import Absent  # noqa: PLC0415 (as above)

        try:
            with required("ssh"):
                from opsctl.nodes.remote.ssh import Ssh  # noqa: PLC0415 (paramiko, for those who use ssh)
        except MissingPackage as error:  # the other ways may lead there
            return Absent(name="ssh", problem=f"{error.message}: {error.hint}")
        return Ssh.of(self.site.remote, self.clock)

    def place(self, run: RunDir, user: str) -> LaunchPlace:
        """Where preflight looks before `run` is launched by `user` from the working directory."""
        from opsctl.preflight.gather_facts import LaunchPlace  # noqa: PLC0415 (for those who launch)

        return LaunchPlace(
            run=run, base=Path.cwd(), filesystems=self.site.filesystem, history=self.history.all(), user=user,
            measured=SiteDir.of(self.root).path / "watch" / "fs_quota", runner=self.runner, now=self.clock.now(),
        )  # fmt: skip

    def find(self, train: str) -> RunDir:
        """The train of that name or path. Raises InputError."""
        return run_dir.find(self.root, train)

    def journal(self, run: RunDir) -> Journal:
        return Journal(run, self.clock)

    def chain(self, run: RunDir) -> TrainArrays:
        return TrainArrays(run=run, journal=self.journal(run), scheduler=self.scheduler)

    def check_trusted(self, run: RunDir) -> None:
        """Refuse to act on a run directory that others could have written to. Raises RunDirError."""
        root = self.root if self.site.trust_parents else None
        run_dir.check_trusted((run.config, run.body, run.wrapper, run.journal), root=root)


def _say(text: str) -> None:
    sys.stderr.write(f"opsctl cron: {text}\n")
    sys.stderr.flush()


def build(site_file: Path | None = None) -> App:
    """The real thing, from `site_file` or the site file that is found. Raises ConfigError."""
    path = site_file or find_site()
    site = load_site(path) if path else built_in_site()
    return App(site=site, site_path=path, clock=SystemClock(), runner=SystemRunner())


def built_in_site() -> SiteSettings:
    """Without a site file: the machine's own Slurm if it has one, else the sandbox; trains in the user's own state."""
    has_slurm = bool(os.environ.get("SLURM_CONF")) or Path("/etc/slurm/slurm.conf").exists()
    engine: Literal["slurm", "sandbox"] = "slurm" if has_slurm and shutil.which("sinfo") else "sandbox"
    root = os.environ.get("OPSCTL_ROOT") or str(state_home() / "trains")
    try:
        return SiteSettings(root=root, engine=engine)
    except ValueError as error:
        raise OpsctlError(f"OPSCTL_ROOT: {error}") from error
